"""Prints digests of reductions with epilogues of four ranks in however many processes: the same in each layout."""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import epilogues

RANKS = 4
SIZE = 61_440  # four chunks of whole cache lines in either dtype


def _mesh() -> Mesh:
    return Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))[:RANKS]), ("x",))


def _values(seed: int) -> jax.Array:
    """float32[RANKS, SIZE], multiples of 1/64, so that sums are exact in any order."""
    values = (np.random.default_rng(seed).integers(-99, 100, (RANKS, SIZE)) / 64).astype(np.float32)
    return jax.make_array_from_callback(values.shape, NamedSharding(_mesh(), P("x")), lambda at: values[at])


def _spread(function, *operands):
    return jax.jit(jax.shard_map(function, mesh=_mesh(), in_specs=P("x"), out_specs=P("x")))(*operands)


def digests() -> list[str]:
    """A line for each call, algorithm and shard that this process has."""
    after = epilogues.scale(0.3).then(epilogues.clip(-1, 1)).then(epilogues.cast(jnp.bfloat16))

    def reduce(v, algorithm):
        return jaxring.all_reduce(v, "x", algorithm=algorithm, epilogue=after)

    def step(g, p, mu, nu, algorithm):
        adam = epilogues.adam(p[0, :100], mu[0, :100], nu[0, :100] ** 2, 2, 1e-2)
        new = jaxring.reduce_scatter(g[0, : RANKS * 100], "x", tiled=True, algorithm=algorithm, epilogue=adam)
        return jnp.stack(new)[None]

    own = [_values(seed) for seed in range(4)]
    lines = []
    for algorithm in ("ring", "halving_doubling", "tree", "direct", "hier_ring", "hier_direct"):
        found = {"all_reduce": _spread(lambda v, a=algorithm: reduce(v, a), own[0])}
        if algorithm not in ("tree",):
            found["adam"] = _spread(lambda *each, a=algorithm: step(*each, a), *own)
        for name, array in found.items():
            for shard in array.addressable_shards:
                digest = hashlib.sha256(np.asarray(shard.data).tobytes()).hexdigest()[:16]
                place = "every rank" if name == "all_reduce" else f"rank {shard.index[0].start or 0}"
                lines.append(f"{name} {place} {digest}")
    return sorted(set(lines))


def sent() -> list[int]:
    """The payload bytes that this process sends in an all-reduce by ring: of float32, and cast to bfloat16."""
    counts = []
    for after in (epilogues.scale(1.0), epilogues.cast(jnp.bfloat16)):
        before = jaxring.counters()["sent_bytes"]
        jax.block_until_ready(
            _spread(lambda v, e=after: jaxring.all_reduce(v, "x", algorithm="ring", epilogue=e), _values(0))
        )
        counts.append(jaxring.counters()["sent_bytes"] - before)
    return counts


if __name__ == "__main__":
    print("\n".join(digests()))
    print("sent", *sent())
