"""The slices in which data goes through switches that reduce and copy, and what filling and emptying them takes.

Programs' buffers are not in the memory that switches reach. So a rank copies a slice there while the switches reduce
the one before and the one before that is copied to the result. NCCL (src/device/all_reduce.h, NVLS) and
ffi/cuda/experimental/multicast.h both do that; the sizes are NCCL's.
"""

from __future__ import annotations

# NCCL_NVLS_CHUNKSIZE, NCCL 2.30 src/transport/nvls.cc.
_CHUNK = 128 << 10
# Below so many times what all channels and ranks hold at once, chunks of at most so many bytes: NCCL 2.30
# src/enqueue.cc, NCCL_ALGO_NVLS.
_SMALLER = ((64, 64 << 10), (8, 32 << 10), (2, 16 << 10))
# What a copy of a slice takes of the time that switches take for it. Fitted to what NCCL 2.20 is published to reach on
# 8 H200: with 0 an all-reduce of 16 MiB is a third too fast, with 1 that of 1 MiB is a fifth too slow.
_COPY = 0.55
# The copies before and after the switches' work, by collective.
_COPIES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def slice_bytes(nbytes: int, channels: int, ranks: int) -> int:
    """How many of ``nbytes`` go through the switches at once."""
    chunk = _CHUNK
    for times, most in _SMALLER:
        if nbytes < times * channels * ranks * chunk:
            chunk = min(chunk, most)
    return min(nbytes, channels * ranks * chunk)


def copying_us(collective: str, nbytes: int, channels: int, ranks: int, through_switches_us: float) -> float:
    """The time of the copies that nothing else goes on beside: of the first slice, or the last one, or both.

    ``nbytes``: of the whole vector. ``through_switches_us``: what the switches take for all of it.
    """
    return _COPY * _COPIES[collective] * through_switches_us * slice_bytes(nbytes, channels, ranks) / nbytes
