"""Every collective of every program: also those that XLA's partitioner inserts run on the engine.

XLA hands each module that it compiles, after partitioning, to the transformations that are registered with it. Ours
replaces the collectives by the custom calls to which calls of the user's are lowered.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from jaxring import _compat
from jaxring.dropin.whole_program.compilation_cache import cache_key
from jaxring.dropin.whole_program.transformation import transform

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("jaxring.install")

_NAME = "jaxring"


def start() -> list[Callable[[], None]]:
    """From now on modules are transformed. Returns what undoes it. RuntimeError where this JAX has no such door.

    The persistent compilation cache keeps programs that were compiled with us apart from others: the former hold our
    calls, and the latter do not.
    """
    undo = [_compat.register_cpu_transformation(_NAME, transform)]
    undo.append(_compat.register_cuda_transformation(_NAME, functools.partial(transform, on_gpus=True), _refused))
    undo.append(_compat.extend_cache_key(cache_key()))
    return undo


def _refused(why: str) -> None:
    log.warning("jaxring.install(whole_program=True): programs for GPUs keep XLA's collectives: %s", why)
