"""Which collectives are started and joined later, so that other work can lie between.

A start and its join are not captured into CUDA graphs, and XLA takes each as a step of its own. So a collective is
started only where it moves much and the program has work that neither needs it nor is needed by it; XLA schedules the
start as early and the join as late as it can. The limit is not measured.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jaxring.dropin.whole_program.gpu.dependencies import WORK, Dependencies
from jaxring.dropin.whole_program.rewrite import STARTABLE
from jaxring.dropin.whole_program.shapes import shapes
from jaxring.plan import dtypes

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Computation
    from jaxring.dropin.whole_program.shapes import Shape

# A collective is started if a rank's operands have at least so many bytes. A MiB takes some 10 us between GPUs that
# share NVLink, about what a start and a join cost.
_LEAST_BYTES = 1 << 20


def to_start(computation: Computation) -> frozenset[int]:
    """Their ids."""
    sizes = {each.id: shapes(each.shape) for each in computation.instructions}
    large = {
        each.id
        for each in computation.instructions
        if each.opcode in STARTABLE and sum(_bytes(sizes, operand) for operand in each.operands) >= _LEAST_BYTES
    }
    work = {each.id for each in computation.instructions if each.opcode in WORK}
    if not large or not work:
        return frozenset()
    dependencies = Dependencies(computation, large | work)
    return frozenset(each for each in large if any(dependencies.independent(each, other) for other in work))


def _bytes(sizes: dict[int, tuple[Shape, ...]], operand: int) -> int:
    known = (each for each in sizes[operand] if each.dtype in dtypes.DTYPES)
    return sum(math.prod(each.dims) * dtypes.element_bytes(each.dtype) for each in known)
