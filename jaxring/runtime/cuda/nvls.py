"""Native plans for the algorithm `nvls`, and whether ranks can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.plan import dtypes, protocols
from jaxring.plan.gpu import nvls
from jaxring.runtime.cuda.gpu_info import uuid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.plan.schedule import Schedule
    from jaxring.runtime.cuda.gpu_info import GpuInfo

# Each GPU's memory that is bound to the multicast object of a communicator. A slice of all lanes is half of it: large
# enough that the meeting of a slice costs little beside it.
MEMORY_BYTES = 64 << 20


def fill(plan: Any, schedule: Schedule, local: Iterable[int], lanes: int, threads: int, trap: bool) -> None:
    """Fill a plan builder, except for its identity and data, with the collective of ``schedule``."""
    plan.set_shape(schedule.in_blocks, schedule.out_blocks, 1, 0, lanes)
    plan.set_kernel(protocols.GPU["memory"], -1, threads, trap, False)
    kernel = schedule.spec.facts.gpu_multicast
    assert kernel is not None
    plan.set_multicast(kernel)
    for rank in local:
        # Lanes without steps: they only run their epoch barriers.
        plan.add_local(rank, b"", np.zeros(lanes + 1, np.uint32).tobytes(), b"", True)


def why_not(
    native: Any,
    collective: str,
    op: str | None,
    dtype: str,
    domains: Sequence[int],
    devices: Sequence[int],
    infos: Sequence[GpuInfo],
) -> str:
    """Why the ranks cannot use multicast memory, or "". ``devices`` and ``infos`` have an entry for each rank."""
    if collective not in nvls.SERVED:
        return f"it serves {', '.join(nvls.SERVED)}"
    if len(domains) < 2 or len(set(domains)) > 1:
        return "it needs several ranks, all in one domain"
    uuids = [uuid_of(device, info) for device, info in zip(devices, infos, strict=True)]
    for rank, uuid in enumerate(uuids):
        if uuid in uuids[:rank]:
            return f"each rank needs a GPU of its own, and ranks {uuids.index(uuid)} and {rank} share one"
        if uuid not in infos[rank].multicast:
            return (
                f"the driver reports no multicast for the GPU of rank {rank}: there is no NVLink switch, or it is off"
            )
    if widening(native, op, dtype) == 0:
        return f"switches have no {op} of {dtype} as it is promised"
    return ""


def widening(native: Any, op: str | None, dtype: str) -> int:
    """For each byte of data, how many go through the switch; 0 where it cannot reduce so."""
    if op is None:
        return 1
    return int(native.switch_widens(dtypes.dtype_code(dtype), dtypes.REDUCE_OPS[op], op == "mean"))
