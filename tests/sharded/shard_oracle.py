"""What the collectives on whole arrays give, in NumPy, for an array that one dimension's ranks share."""

from __future__ import annotations

import numpy as np

REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean}


def blocks(x, ranks, dimension, outer=1):
    """[outer position][rank] -> block; ``outer`` counts the positions along other axes that cut the same dimension."""
    return [np.split(part, ranks, dimension) for part in np.split(x, outer, dimension)]


def all_reduce(x, ranks, dimension, outer=1, op="sum"):
    """The reduced blocks, one for each outer position."""
    return np.concatenate([REDUCE[op](np.stack(b), axis=0) for b in blocks(x, ranks, dimension, outer)], dimension)


def reduce_scatter(x, ranks, dimension, outer=1, op="sum"):
    """The same data as all_reduce: it is only sharded otherwise."""
    return all_reduce(x, ranks, dimension, outer, op)


def all_gather(x, ranks, dimension, outer=1):
    """The array itself."""
    return x


def broadcast(x, ranks, dimension, outer=1, root=0):
    """The root's blocks."""
    return np.concatenate([b[root] for b in blocks(x, ranks, dimension, outer)], dimension)


def permute(x, ranks, dimension, outer=1, perm=()):
    """Moved blocks, zeros where nothing goes."""
    result = []
    for b in blocks(x, ranks, dimension, outer):
        moved = [np.zeros_like(v) for v in b]
        for source, target in perm:
            moved[target] = b[source]
        result += moved
    return np.concatenate(result, dimension)


def all_to_all(x, ranks, dimension, outer=1, split_axis=0, concat_axis=0):
    """Rank j's new block: the j-th parts of all blocks."""
    result = []
    for b in blocks(x, ranks, dimension, outer):
        parts = [np.split(v, ranks, split_axis) for v in b]
        result += [np.concatenate([p[j] for p in parts], concat_axis) for j in range(ranks)]
    return np.concatenate(result, dimension)
