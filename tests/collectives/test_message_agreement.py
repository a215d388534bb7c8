"""A send and a receive that do not agree about what is sent: an error, and never a part of the data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

PAIRS = [(0, 1), (1, 0)]


# 65536 float32 are two tiles of the Simple protocol and 32768 are one: whole tiles agree, the totals do not.
@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (("float32", 65536), ("float32", 32768)),
        (("float32", 32768), ("float32", 65536)),
        (("float32", 64), ("int32", 64)),
        (("int16", 64), ("int8", 128)),
    ],
)
def test_different_shape_or_dtype(sent: tuple[str, int], wanted: tuple[str, int]) -> None:
    tag = hash((sent, wanted)) % 1000  # a failed exchange leaves its queue uneven

    def body(x: jax.Array) -> jax.Array:
        token = jaxring.send(x[0].astype(sent[0]), "r", PAIRS, tag=tag, timeout=20)
        y, _ = jaxring.recv(jax.ShapeDtypeStruct((wanted[1],), wanted[0]), "r", PAIRS, token, tag=tag, timeout=20)
        return y[None]

    mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P("r")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="disagree about the operation's shape or type"):
        program(jnp.ones((2, sent[1]))).block_until_ready()
