"""Collectives of ranks that share GPUs in one process, without XLA, against NumPy; on the fake GPU and on real ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.gpu.standalone import How, Ranks
from jaxring.plan.gpu import copy_engine

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
# The kernels' numbers of fused collectives.
FUSED = (("all_reduce", 1), ("reduce_scatter", 2), ("all_gather", 3), ("broadcast", 4), ("all_to_all", 5))
# Elements that the one-shot all-reduce takes, of any dtype here.
ONE_SHOT = 1000
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def inputs_of(schedule, dtype, block, seed):
    """Small integers, whose sums are exact in every dtype."""
    random = np.random.default_rng(seed)
    shape = (schedule.spec.nranks, schedule.in_blocks, block)
    return random.integers(0, 3, shape).astype(dtype)


def expected(schedule, x, rank, op):
    """A rank's output as (blocks, block); None where the collective leaves it open."""
    n, root, what = schedule.spec.nranks, schedule.spec.root, schedule.spec.collective
    if what in REDUCING:
        wide = x.astype(np.float64)
        folded = {"sum": wide.sum(0), "min": wide.min(0), "max": wide.max(0), "mean": wide.sum(0) / n}[op].astype(
            x.dtype
        )
        if what == "reduce" and rank != root:
            return np.zeros_like(folded)
        return folded[rank : rank + 1] if what == "reduce_scatter" else folded
    if what in ("all_gather", "gather"):
        return x[:, 0] if what == "all_gather" or rank == root else np.zeros_like(x[:, 0])
    if what == "all_to_all":
        return x[:, rank]
    if what == "scatter":
        return x[root, rank : rank + 1]
    return x[root]


def check(ranks, collective, algorithm, protocol, dtype, block, op="sum", channels=1, **how):
    extra = {"root": ranks.count - 1} if collective in ("broadcast", "reduce", "gather", "scatter") else {}
    schedule = ranks.schedule(collective, algorithm, channels, **extra)
    if schedule.nlanes > ranks.lanes:
        return
    x, y = (inputs_of(schedule, dtype, block, len(collective) + block + other) for other in (0, 10**6))
    op = op if collective in REDUCING else None
    result = ranks.run(schedule, protocol, list(x), list(y), op, How(**how), launches=2)
    for given, outputs in ((x, result.outputs), (y, result.other_outputs)):
        for rank, output in enumerate(outputs):
            want = expected(schedule, given, rank, op)
            got = output.reshape(want.shape)
            what = f"{collective} {algorithm}/{protocol} {np.dtype(dtype).name}[{block}] {op}"
            np.testing.assert_array_equal(got, want, err_msg=f"{what}, rank {rank} of {ranks.count}")


def matrix(native, counts, blocks, dtypes, threads):
    """All collectives by all algorithms and protocols that serve them."""
    for count in counts:
        # Staging buffers so small that the largest blocks come in several slices, but not in so many that a launch's
        # commands would fill a stream's queue.
        ranks = Ranks(native, count, threads=threads, staging_bytes=count * max(1024, blocks[-1] // 2 // 256 * 256))
        for collective in COLLECTIVES:
            for block in blocks:
                for dtype in dtypes:
                    check(ranks, collective, "direct", "memory", dtype, block)
        for collective, algorithm in (
            ("all_reduce", "ring"),
            ("all_reduce", "tree"),
            ("all_reduce", "halving_doubling"),
            ("all_gather", "ring"),
            ("reduce_scatter", "ring"),
            ("broadcast", "tree"),
        ):
            for protocol in ("simple", "ll", "ll128"):
                for block in blocks:
                    for dtype in dtypes:
                        check(ranks, collective, algorithm, protocol, dtype, block)
        for collective, number in FUSED:
            for block in blocks:
                for dtype in dtypes:
                    check(ranks, collective, "direct", "memory", dtype, block, fused=number)
                    if collective == "all_reduce" and block <= ONE_SHOT:
                        check(ranks, collective, "direct", "memory", dtype, block, fused=0)
        for collective in sorted(copy_engine.SERVED - {"permute"}):
            for block in blocks:
                for dtype in dtypes:
                    check(ranks, collective, "direct", "memory", dtype, block, copies=True)
        for dtype in (dtypes[0], np.int8):  # bytes: most blocks then begin at odd addresses
            for collective, number in FUSED[2:]:
                check(ranks, collective, "direct", "memory", dtype, blocks[-1], fused=number, bulk_bytes=16)
            for collective in ("all_reduce", "all_gather"):
                check(ranks, collective, "ring", "simple", dtype, blocks[-1], bulk_bytes=16)
        check(ranks, "all_reduce", "direct", "memory", np.int32, 99, "max")
        check(ranks, "all_reduce", "ring", "simple", ml_dtypes.bfloat16, 99, "mean")
        check(ranks, "all_reduce", "ring", "simple", np.float32, blocks[-1], channels=2)


def through_the_switch(native, blocks, threads):
    """Two ranks with a GPU each; why not, or ""."""
    # Memory so small that the larger blocks come in several slices.
    ranks = Ranks(native, 2, threads=threads, multicast_bytes=1 << 14)
    if why_not := ranks.why_not_nvls():
        return why_not
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        for block in blocks:
            for dtype in (np.float32, ml_dtypes.bfloat16, np.int64):
                check(ranks, collective, "direct", "memory", dtype, block, nvls=True)
    check(ranks, "all_reduce", "direct", "memory", np.int32, 99, "max", nvls=True)
    check(ranks, "all_reduce", "direct", "memory", np.float32, blocks[-1], "mean", channels=2, nvls=True)
    for collective in ("all_reduce", "reduce_scatter"):
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
            for op in ("min", "max", "mean"):
                check(ranks, collective, "direct", "memory", dtype, blocks[-1] + 1, op, nvls=True)
    return ""


ALL_DTYPES = (
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    np.int8,
    np.int32,
    np.int64,
)
