"""Into how many chunks a collective is cut whose transfer and the compute on it take turns: a pure function.

While chunks travel, others are computed on. What cannot be hidden is the compute of one chunk or its transfer,
whichever is shorter. What a chunk costs is a step of the program that waits for it. The latency of its collective is
hidden behind the chunk in flight beside it, as long as that takes longer.
"""

from __future__ import annotations

import functools

from jaxring.plan import tuner

# Floating-point operations that a CPU device is taken to do in a microsecond: of a few cores. A factor of four changes
# the number of chunks by two.
_FLOPS_PER_US = 100_000
# A custom call's part in the program: its step, its future, and waking what waits for it.
_STEP_US = 100.0
# More chunks hide little more, and each is code in the program: the fewest are taken that come so near to the least.
_CHOICES = (1, 2, 3, 4, 6, 8, 12, 16)
_NEAR = 1.01
# Chunks that are taken to share the links.
IN_FLIGHT = 2


@functools.lru_cache(maxsize=256)
def chunks(collective: str, ranks: int, processes: int, nbytes: int, dtype: str, flops: int, most: int) -> int:
    """How many chunks are fastest, ``most`` at most, by the tuner's prices.

    ``nbytes``: of input per rank. ``flops``: of a rank, on the whole. Where ranks lie is not known while a program is
    traced, so the ranks are taken as spread evenly over ``processes``, each on a host of its own.
    """
    where = tuple(rank * min(ranks, processes) // ranks for rank in range(ranks))
    compute = flops / _FLOPS_PER_US

    def transfer(count: int) -> float:
        return tuner.choose(collective, where, where, -(-nbytes // count), dtype).candidates[0][1]

    def time(count: int) -> float:
        each = transfer(count)
        wire = max(transfer(1), each * count / min(count, IN_FLIGHT))
        return max(wire, compute + _STEP_US * count) + min(each, compute / count + _STEP_US)

    times = {count: time(count) for count in _CHOICES if count <= max(1, most)}
    return min(count for count, us in times.items() if us <= _NEAR * min(times.values()))
