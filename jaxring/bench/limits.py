"""What the machine can do: the bound against which a collective's time is held."""

from __future__ import annotations

import concurrent.futures
import os
import time

import numpy as np

_BYTES = 64 << 20
_ROUNDS = 3


def copy_bandwidth() -> float:
    """GB/s of a copy on all cores, bytes read plus bytes written; the best of a few rounds, memory touched before."""
    cores = len(os.sched_getaffinity(0))
    pairs = [(np.ones(_BYTES // cores, np.uint8), np.zeros(_BYTES // cores, np.uint8)) for _ in range(cores)]
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        best = float("inf")
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            # NumPy lets other threads run while it copies.
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = min(best, time.perf_counter() - begin)
    return 2 * _BYTES / best / 1e9
