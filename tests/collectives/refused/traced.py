"""Calls of all functions on 4 ranks that are traced and not run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

N = 4
X = np.arange(N * N * 3.0, dtype=np.float32).reshape(N, N, 3)
SUM = np.ones((N, 8), np.float32)


def trace(f, x=X, lower=False):
    """Traces ``f`` of a rank's value on 4 ranks of axis x, lowers it if asked to, and runs nothing."""
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    mapped = jax.shard_map(lambda v: jax.tree.leaves(f(v[0]))[0][None], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    return jax.jit(mapped).lower(x) if lower else jax.eval_shape(mapped, x)


CALLS = {
    "all_reduce": lambda v, axis="x", **o: jaxring.all_reduce(v, axis, **o),
    "all_gather": lambda v, axis="x", **o: jaxring.all_gather(v, axis, **o),
    "reduce_scatter": lambda v, axis="x", **o: jaxring.reduce_scatter(v, axis, **o),
    "all_to_all": lambda v, axis="x", **o: jaxring.all_to_all(v, axis, 0, 0, **o),
    "permute": lambda v, axis="x", **o: jaxring.permute(v, axis, [(0, 1)], **o),
    "broadcast": lambda v, axis="x", **o: jaxring.broadcast(v, axis, **o),
    "reduce": lambda v, axis="x", **o: jaxring.reduce(v, axis, **o),
    "gather": lambda v, axis="x", **o: jaxring.gather(v, axis, **o),
    "scatter": lambda v, axis="x", **o: jaxring.scatter(v, axis, **o),
    "barrier": lambda v, axis="x", **o: jaxring.barrier(axis, **o),
    "send": lambda v, axis="x", **o: jaxring.send(v, axis, [(0, 1)], **o),
    "recv": lambda v, axis="x", **o: jaxring.recv(v, axis, [(0, 1)], **o),
    "ragged_all_to_all": lambda v, axis="x", **o: jaxring.ragged_all_to_all(
        v, v, *[jnp.zeros(N, jnp.int32)] * 4, axis_name=axis, **o
    ),
}
SCHEDULED = [name for name in CALLS if name not in ("barrier", "send", "recv", "ragged_all_to_all")]
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
