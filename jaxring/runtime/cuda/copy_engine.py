"""Native plans for the algorithm `copy_engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.plan.gpu import copy_engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.plan.schedule import Schedule

# The length of each rank's memory that copies of its peers land in: at most what a slice of every block takes. Large
# enough that an epoch barrier between slices costs next to nothing.
STAGING_BYTES = 128 << 20


def fill(native: Any, plan: Any, schedule: Schedule, local: Iterable[int], trap: bool) -> None:
    """Fill a plan builder, except for its identity and data, with copies that have the effect of ``schedule``."""
    plan.set_shape(schedule.in_blocks, schedule.out_blocks, 1, 0, 1)
    plan.set_kernel(0, -1, 64, trap, False)
    for rank in local:
        # One lane without steps: it only runs its epoch barriers.
        plan.add_local(rank, b"", np.zeros(2, np.uint32).tobytes(), b"", True)
        found = copy_engine.moves(schedule.spec, rank)
        moves = [native.Move(**move._asdict()) for move in found.moves]
        plan.set_moves(rank, moves, found.arrivals)
