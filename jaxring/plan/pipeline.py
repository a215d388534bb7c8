"""Into how many chunks a collective is cut whose transfer and the compute on it take turns: a pure function.

While a chunk travels, its neighbour is computed on. What cannot be hidden is the compute of one chunk or its transfer,
whichever is shorter. What a chunk costs is the latency of a collective, and a step of the program that waits for it.
"""

from __future__ import annotations

import functools

from jaxring.plan import tuner

# Floating-point operations that a CPU device is taken to do in a microsecond: of a few cores. A factor of four changes
# the number of chunks by two.
_FLOPS_PER_US = 100_000
# A custom call's part in the program: its step, its future, and waking what waits for it.
_STEP_US = 100.0
# More chunks hide little more, and each is code in the program.
_CHOICES = (1, 2, 3, 4, 6, 8, 12, 16)


@functools.lru_cache(maxsize=256)
def chunks(collective: str, ranks: int, processes: int, nbytes: int, dtype: str, flops: int, most: int) -> int:
    """How many chunks are fastest, ``most`` at most, by the tuner's prices.

    ``nbytes``: of input per rank. ``flops``: of a rank, on the whole. Where ranks lie is not known while a program is
    traced, so the ranks are taken as spread evenly over ``processes``, each on a host of its own.
    """
    where = tuple(rank * min(ranks, processes) // ranks for rank in range(ranks))
    compute = flops / _FLOPS_PER_US

    def time(count: int) -> float:
        each = tuner.choose(collective, where, where, -(-nbytes // count), dtype).candidates[0][1]
        return max(each * count, compute) + min(each, compute / count) + _STEP_US * count

    return min((count for count in _CHOICES if count <= max(1, most)), key=time)
