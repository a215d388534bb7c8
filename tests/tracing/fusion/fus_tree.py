"""A pytree of gradients as models have them, and its sums with and without joining; also what a process of a job runs.

fus_tree.py: two or more processes under `jaxring run`; fails where joining changes a bit.
"""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.tracing.lowering import fusion


def gradients(ranks):
    """Leaves of several dtypes, from none and one to some thousand elements, so that several algorithms serve them."""
    rng = np.random.default_rng(5)
    shapes = [(), (1,), (3, 5), (64, 33), (0, 4), (4099,), (128, 128), (7,), (2, 2, 2), (50001,)]
    dtypes = [np.float32, np.float32, ml_dtypes.bfloat16, np.float32, np.float16, np.float32]
    leaves = [rng.normal(size=(ranks, *s)).astype(dtypes[i % len(dtypes)]) for i, s in enumerate(shapes)]
    # jaxlib 0.11.2 ends the process where a program has an empty operand beside others.
    return [leaf for leaf in leaves if leaf.size]


def summed(mesh, tree, fused, op="sum"):
    """Every rank's result of each leaf, as the local shards' bytes."""

    def f(leaves):
        return [x[None] for x in jaxring.all_reduce([x[0] for x in leaves], mesh.axis_names[0], op)]

    spec = P(mesh.axis_names[0])
    run = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    if fused:
        lowered = run.lower(tree)
    else:
        with fusion.apart():
            lowered = run.lower(tree)
    calls = lowered.as_text().count("@jaxring_all_reduce(")
    assert calls == (1 if fused else len(tree)), calls
    compiled = lowered.compile()
    for _ in range(3):
        results = compiled(tree)
    return [[np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards] for leaf in results]


def main() -> None:
    """On all devices of the job."""
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    mesh = Mesh(np.array(devices), ("r",))
    sharding = NamedSharding(mesh, P("r"))
    tree = [
        jax.make_array_from_callback(x.shape, sharding, lambda index, x=x: x[index]) for x in gradients(len(devices))
    ]
    for op in ("sum", "mean", "max"):
        assert summed(mesh, tree, fused=True, op=op) == summed(mesh, tree, fused=False, op=op), op


if __name__ == "__main__":
    main()
