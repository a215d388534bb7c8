"""Prints digests of compressed collectives of some ranks, in however many processes: the same lines in each layout."""

from __future__ import annotations

import hashlib
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from tests.compress.bounds import NAMES, data


def digests(ranks: int) -> list[str]:
    """A line for each format, seed and local rank."""
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))[:ranks]
    mesh = Mesh(np.array(devices), ("x",))
    values = np.stack([data(5000, seed)["normal"] for seed in range(ranks)])
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("x")), lambda at: values[at])
    lines = []
    for name in NAMES:
        for seed in (None, 9):

            def both(v, name=name, seed=seed):
                options = {"compress": name, "seed": seed}
                gathered = jaxring.all_gather(v[0, :1000], "x", **options)
                return jaxring.all_reduce(v, "x", **options), gathered[None]

            found = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(x)
            for array in found:
                for shard in array.addressable_shards:
                    digest = hashlib.sha256(np.asarray(shard.data).tobytes()).hexdigest()[:16]
                    lines.append(f"{name} {seed} {shard.data.shape[-1]} {digest}")
    return sorted(set(lines))


def sent(ranks: int) -> tuple[int, int]:
    """The bytes that this process sends to others in an all_to_all, as counted, and as they must be."""
    mesh = Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))[:ranks]), ("x",))
    swap = jax.shard_map(lambda v: jaxring.all_to_all(v, "x", 0, 0), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    x = jax.jit(lambda: np.zeros((ranks * ranks, 10), np.float32), out_shardings=NamedSharding(mesh, P("x")))()
    before = jaxring.counters()["sent_bytes"]
    jax.block_until_ready(jax.jit(swap)(x))
    here = len(mesh.local_devices)
    return jaxring.counters()["sent_bytes"] - before, here * (ranks - here) * 10 * 4


if __name__ == "__main__":
    given = int(sys.argv[1])
    print("\n".join(digests(given)))
    print("sent", *sent(given))
