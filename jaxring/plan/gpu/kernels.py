"""Which kernel of the CUDA engine serves a collective, and what lies on the critical path of the small ones.

The engine chooses by the same rules (`KernelOf` in ffi/cuda/kernels/*.cu); the names are those of
docs/cuda-resources.txt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan import dtypes, protocols
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.gpu.lanes import Path, lanes_for, one_shot_bytes, path

if TYPE_CHECKING:
    from collections.abc import Iterator

# Sums that have one-shot kernels of their own, as the engine calls their dtypes, and among how many ranks.
ONE_SHOT_SUMS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
ONE_SHOT_RANKS = (2, 4, 8)


def width(collective: str, dtype: str) -> int:
    """How many vectors of accumulators a vector of elements takes; 0 for what only moves."""
    if not COLLECTIVES[collective].reduces:
        return 0
    return dtypes.accumulator_bytes(dtype) // dtypes.element_bytes(dtype)


def kernel_of(
    collective: str,
    ranks: int,
    operand_bytes: int,
    dtype: str,
    op: str | None,
    algorithm: str,
    protocol: str,
) -> str:
    """The kernel that runs a collective without an epilogue, by an algorithm and a protocol of the tuner."""
    facts, wide = COLLECTIVES[collective], width(collective, dtype)
    if facts.half != "both":
        return "PointToPointKernel<Simple, 0>"
    if algorithm == copy_engine.NAME:
        return "copy engines"
    if algorithm == nvls.NAME:
        return "MulticastKernel<0>"
    if protocol == "memory" and ranks > 1 and facts.gpu_fused is not None:
        if path(collective, ranks, operand_bytes, memory=True) is not Path.PUSH:
            return f"FusedKernel<{wide}>"
        if op in ("sum", "mean") and dtype in ONE_SHOT_SUMS and ranks in ONE_SHOT_RANKS:
            return f"OneShotKernel<{ONE_SHOT_SUMS[dtype]}, {ranks}>"
        return f"AnyOneShotKernel<{wide}>"
    return f"PlayKernel<{protocols.ON_GPUS[protocol].kernel}, {wide}>"


def table() -> Iterator[str]:
    """The lines of docs/cuda.md that say which kernel serves what."""
    yield "| collective | bytes of the operand | ranks | kernel, in each other's memory | kernel, by messages |"
    yield "|---|---|---|---|---|"
    for name, facts in COLLECTIVES.items():
        op = "sum" if facts.reduces else None
        wide = "w" if facts.reduces else "0"
        found: dict[str, list[tuple[str, str]]] = {}
        for size, beyond in (("small", 0), ("more", 4)):
            for ranks in (2, 3, 4, 8, 16):
                nbytes = one_shot_bytes(ranks) + beyond
                for dtype in ("float32", "int32"):
                    kernel = kernel_of(name, ranks, nbytes, dtype, op, "direct", "memory").split("<")[0]
                    among = "2, 4, 8; sums of float32, bfloat16, float16" if kernel == "OneShotKernel" else "other"
                    if (size, among) not in found.setdefault(kernel, []):
                        found[kernel].append((size, among))
        several = len(found) > 1
        for kernel, cases in sorted(found.items(), reverse=True):
            inner = {"OneShotKernel": "dtype, ranks", "PlayKernel": f"Simple, {wide}"}.get(kernel, wide)
            size, among = cases[0] if several else ("any", "any")
            among = "any" if size == "more" else among
            yield f"| {name} | {size} | {among} | `{kernel}<{inner}>` | `PlayKernel<protocol, {wide}>` |"


class CriticalPath(NamedTuple):
    """What a small all-reduce passes through on each rank, by arithmetic.

    ``stored``, ``read``: bytes of a lane, from and to memory of any rank. ``trips``: accesses to memory of which each
    waits for the one before, a store to a peer being one. ``fences``: of the system's scope. ``kernels``: one after
    another on the stream. ``host_reads``: of memory across PCIe.
    """

    lanes: int
    stored: int
    read: int
    trips: int
    fences: int
    kernels: int
    host_reads: int


def critical_path(ranks: int, nbytes: int, most_lanes: int = 16) -> CriticalPath:
    """That of an all-reduce of ``nbytes`` of float32 among ranks of one memory domain, as the planner has it run."""
    way = path("all_reduce", ranks, nbytes, memory=True)
    lanes = lanes_for(way, nbytes, most_lanes)
    share, peers = -(-nbytes // lanes), ranks - 1
    if way is Path.PUSH:
        # Lines are twice their data; the own input is loaded to be sent, and to be added.
        stored, read = 2 * share * peers + share, 2 * share * peers + 2 * share
        # Members and epochs at once; the own pack; lines to the peers; all peers' lines at once, or one after another.
        together = ranks in ONE_SHOT_RANKS
        return CriticalPath(lanes, stored, read, 3 + (1 if together else peers), 0, 1, 0)
    # Members and epochs; the begin: lines to the peers, those of the peers, their acquire, their regions; the shares of
    # two ranks at a time; the result to the peers; the ends to the peers, those of the peers.
    trips = 1 + 4 + -(-ranks // 2) + 1 + 2
    return CriticalPath(lanes, share, share, trips, 1, 1, 0)


def critical_path_of_before(ranks: int, nbytes: int, most_lanes: int = 16) -> CriticalPath:
    """The same for the kernels of commit fbe7ca7, with which the table of docs/cuda.md compares.

    They had lanes by the vector's bytes, one peer's lines after another's, and a guard kernel.
    """
    lanes = 1
    while lanes * 2 <= most_lanes and lanes * 2 * (64 << 10) <= nbytes:
        lanes *= 2
    share, peers = -(-nbytes // lanes), ranks - 1
    if nbytes <= 64 << 10:
        return CriticalPath(lanes, 2 * share * peers + share, 2 * share * peers + 2 * share, 3 + peers, 0, 2, 1)
    # The begin's four words, its release and the fence after it; the begins, the marks, and where the buffers are.
    return CriticalPath(lanes, share, share, 1 + 5 + -(-ranks // 2) + 1 + 2, 3, 2, 1)


def paths_table() -> Iterator[str]:
    """The lines of docs/cuda.md that compare both."""
    yield (
        "| all-reduce of float32 | | lanes | bytes a lane stores | reads | dependent round trips | system fences "
        "| kernels | reads across PCIe |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for ranks, nbytes in ((8, 8 << 10), (8, 32 << 10), (8, 64 << 10), (2, 32 << 10), (8, 128 << 10)):
        for when, found in (
            ("before", critical_path_of_before(ranks, nbytes)),
            ("now", critical_path(ranks, nbytes)),
        ):
            numbers = " | ".join(f"{number:,}" for number in found)
            yield f"| {ranks} ranks, {nbytes >> 10} KiB | {when} | {numbers} |"
