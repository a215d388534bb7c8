"""How many lanes share a collective on GPUs: by the bytes that a lane moves, which depend on the kernel."""

from __future__ import annotations

import enum

# Operands up to these sizes go by the one-shot all-reduce, which pushes them to every rank, where it has 16 lanes and
# every rank reaches every other at the speed of NVLink or within one GPU. Measured for sums of float32 among ranks
# that share an H200, in a CUDA graph (docs/benchmarks/h200): among 2 and 4 ranks it was faster up to 256 KiB and
# slower at 512 KiB, among 8 slower above 128 KiB. GPUs joined by NVLink were not measured; vLLM's all-reduce, whose
# one-shot kernel moves half as many bytes, goes by it among up to 4 of them below 512 KiB, and among up to 8 below 256
# KiB (csrc/custom_all_reduce.cuh). Other numbers of ranks keep the least.
_ONE_SHOT_BYTES = {2: 256 << 10, 4: 256 << 10, 8: 128 << 10}
_ONE_SHOT_LANES = 16
# With fewer lanes, over PCIe, and among other numbers of ranks.
_ONE_SHOT_LEAST = 64 << 10
# Lines of the protocol LL, in which the one-shot all-reduce pushes, take this many bytes for one of data.
_LINE_BYTES = 2


class Path(enum.Enum):
    """By what a kernel moves data. The value: a further lane pays where each lane still moves this many bytes of it.

    One multiprocessor stores and reads some 100 bytes a nanosecond, and to start a lane costs next to nothing where all
    begin at once. So small calls take many lanes: their time is that of one lane.
    """

    PUSH = 4 << 10  # bytes of lines to each peer
    MEMORY = 16 << 10  # bytes of the vector, from or to all ranks together
    MESSAGES = 64 << 10  # bytes of the vector: each message costs a lane more than its bytes


def one_shot_bytes(ranks: int, most_lanes: int = _ONE_SHOT_LANES, near: bool = True) -> int:
    """The largest operand that goes by the one-shot all-reduce among so many ranks of one memory domain.

    ``near``: all of them are on one GPU or joined by NVLink.
    """
    most = _ONE_SHOT_BYTES.get(ranks, _ONE_SHOT_LEAST) if near else _ONE_SHOT_LEAST
    return max(_ONE_SHOT_LEAST, most * min(most_lanes, _ONE_SHOT_LANES) // _ONE_SHOT_LANES)


def path(
    collective: str,
    ranks: int,
    operand_bytes: int,
    memory: bool,
    tables: bool = False,
    most_lanes: int = _ONE_SHOT_LANES,
    near: bool = True,
) -> Path:
    """By what a collective goes. ``memory``: without messages, among ranks that address each other's memory.

    ``tables``: by a kernel that plays a step table. ``most_lanes``, ``near``: as for `one_shot_bytes`.
    """
    if not memory:
        return Path.MESSAGES
    pushed = one_shot_bytes(ranks, most_lanes, near)
    if not tables and collective == "all_reduce" and ranks > 1 and operand_bytes <= pushed:
        return Path.PUSH
    return Path.MEMORY


def lanes_for(way: Path, vector_bytes: int, most: int, fewest: int = 1) -> int:
    """A power of two from 1 to ``most``, and not fewer than ``fewest`` if that fits.

    ``vector_bytes``: of the larger of a rank's operand and result.
    """
    moved = vector_bytes * (_LINE_BYTES if way is Path.PUSH else 1)
    lanes = 1
    while lanes * 2 <= most and (lanes < fewest or lanes * 2 * way.value <= moved):
        lanes *= 2
    return lanes
