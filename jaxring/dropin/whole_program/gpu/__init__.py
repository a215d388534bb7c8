"""What is done to a module for GPUs before its collectives become calls.

XLA hands it over before its passes for collectives, for layouts and for fusion. Those no longer apply to a collective
that has become a custom call, so what they would have done is done here, from HLO to HLO:

* `scatters.py`: a reduce-scatter is made of an all-reduce of which each rank uses its part only;
* `blocks.py`: blocks become the leading dimension, since no layout is decided yet;
* `joining.py`: collectives of one kind that do not need each other become one;
* `call_order.py`: they are brought in one order, which their calls keep;
* `overlap.py`: large collectives that have other work beside them are to be started, and joined later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.dropin.whole_program.gpu.blocks import lead_with_blocks
from jaxring.dropin.whole_program.gpu.call_order import CALLS, arrange, chain
from jaxring.dropin.whole_program.gpu.joining import join
from jaxring.dropin.whole_program.gpu.overlap import to_start
from jaxring.dropin.whole_program.gpu.scatters import make_scatters

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Computation, Module


def prepare(module: Module, computation: Computation) -> frozenset[int]:
    """Changes a computation's instructions. Returns the ids of the collectives that are to be started."""
    make_scatters(module, computation)
    lead_with_blocks(module, computation)
    join(module, computation)
    arrange(computation)
    return to_start(computation)


__all__ = ["CALLS", "chain", "prepare"]
