"""What workers share: a mesh over all devices, data that every process knows, programs of many collectives."""

from __future__ import annotations

import os

import jax
import numpy as np
import numpy.testing  # here: two threads that load it at its first use recurse without end
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.world import launch

AXIS = "x"


def start() -> Mesh:
    """Joins the job that the environment names, if it names one. One mesh axis over all devices of all processes."""
    if "JAX_NUM_PROCESSES" in os.environ:
        launch.initialize()
    devices = jax.devices()
    assert len(devices) == int(os.environ["JAX_NUM_CPU_DEVICES"]) * int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    return Mesh(np.array(devices), (AXIS,))


def put(mesh: Mesh, rows: np.ndarray, spec: P | None = None) -> jax.Array:
    """A global array; by default row r is that of rank r."""
    sharding = NamedSharding(mesh, P(AXIS) if spec is None else spec)
    return jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])


def over(mesh: Mesh, function, **options):
    """``jit(shard_map(function))`` where the function sees its rank's row without the leading axis, in and out."""

    def local(*args):
        out = function(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], out)

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS)), **options)


def check(result: jax.Array, expected: np.ndarray, what: object = "") -> None:
    """This process's shards hold exactly what `expected` says."""
    assert result.shape == expected.shape, (what, result.shape, expected.shape)
    assert result.addressable_shards
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index], err_msg=f"{what} {shard.index}")


def rows(ranks: int, length: int, dtype="float32", seed: int = 0) -> np.ndarray:
    """Small whole numbers, so that every sum is exact in every dtype but fp8; one row for each rank."""
    return np.random.default_rng((seed, ranks, length)).integers(0, 5, (ranks, length)).astype(dtype)


def same(row: np.ndarray, ranks: int) -> np.ndarray:
    return np.broadcast_to(row, (ranks, *row.shape))


def only(root: int, row: np.ndarray, ranks: int) -> np.ndarray:
    result = np.zeros((ranks, *row.shape), row.dtype)
    result[root] = row
    return result


def collective(kind: str, ranks: int, number: int = 0, **options):
    """(function of one rank's vector, function of all rows that gives what all ranks must get).

    The vector's length is a multiple of `ranks`. `number` varies roots, shifts and operations.
    """
    root, shift = number % ranks, number % max(1, ranks - 1) + 1
    if kind == "all_reduce":
        op, fold = [("sum", np.sum), ("max", np.max), ("min", np.min), ("sum", np.sum)][number % 4]
        return (
            lambda x: jaxring.all_reduce(x, AXIS, op, **options),
            lambda a: same(fold(a, axis=0, dtype=a.dtype) if op == "sum" else fold(a, axis=0), ranks),
        )
    if kind == "all_gather":
        return (
            lambda x: jaxring.all_gather(x, AXIS, tiled=True, **options),
            lambda a: same(a.reshape(-1), ranks),
        )
    if kind == "reduce_scatter":
        return (
            lambda x: jaxring.reduce_scatter(x, AXIS, tiled=True, **options),
            lambda a: a.sum(axis=0, dtype=a.dtype).reshape(ranks, -1),
        )
    if kind == "all_to_all":
        return (
            lambda x: jaxring.all_to_all(x, AXIS, 0, 0, tiled=True, **options),
            lambda a: a.reshape(ranks, ranks, -1).swapaxes(0, 1).reshape(ranks, -1),
        )
    if kind == "permute":
        pairs = [(i, (i + shift) % ranks) for i in range(ranks)]
        return lambda x: jaxring.permute(x, AXIS, pairs, **options), lambda a: np.roll(a, shift, axis=0)
    if kind == "broadcast":
        return lambda x: jaxring.broadcast(x, AXIS, root, **options), lambda a: same(a[root], ranks)
    if kind == "reduce":
        return (
            lambda x: jaxring.reduce(x, AXIS, "sum", root, **options),
            lambda a: only(root, a.sum(axis=0, dtype=a.dtype), ranks),
        )
    if kind == "gather":
        return (
            lambda x: jaxring.gather(x, AXIS, root, tiled=True, **options),
            lambda a: only(root, a.reshape(-1), ranks),
        )
    if kind == "scatter":
        return (
            lambda x: jaxring.scatter(x, AXIS, root, tiled=True, **options),
            lambda a: a[root].reshape(ranks, -1),
        )
    raise ValueError(kind)


KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "permute",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)


class Mixture:
    """A program of `count` independent collectives of all kinds and of sizes from one element per rank to `largest`."""

    def __init__(self, mesh: Mesh, count: int, seed: int = 0, largest: int = 20000) -> None:
        ranks = mesh.size
        rng = np.random.default_rng((seed, count))
        parts = [collective(KINDS[i % len(KINDS)], ranks, int(rng.integers(1000))) for i in range(count)]
        lengths = [ranks * int(largest ** rng.random() / ranks + 1) for _ in range(count)]
        dtypes = [("float32", "int32", "bfloat16", "int16")[int(rng.integers(4))] for _ in range(count)]
        data = [rows(ranks, n, t, seed + i) for i, (n, t) in enumerate(zip(lengths, dtypes, strict=True))]
        order = [int(i) for i in rng.permutation(count)]

        def program(*xs):
            results = {i: parts[i][0](xs[i]) for i in order}
            return tuple(results[i] for i in range(count))

        self.run = over(mesh, program)
        self.inputs = [put(mesh, a) for a in data]
        self._expected = [parts[i][1](a) for i, a in enumerate(data)]

    def launch(self):
        return self.run(*self.inputs)

    def check(self, results) -> None:
        for i, (result, expected) in enumerate(zip(results, self._expected, strict=True)):
            check(result, expected, f"collective {i}, {KINDS[i % len(KINDS)]}")
