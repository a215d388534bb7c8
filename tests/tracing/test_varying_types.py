"""Under check_vma=True the type of every result says over which axes it varies, and never too few."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.tracing.primitives import PRIMITIVES

MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
X = np.random.default_rng(0).permutation(2.0 ** np.arange(32)).reshape(2, 2, 4, 2).astype(np.float32)
OVER = (frozenset(), frozenset("a"), frozenset("b"), frozenset("ab"))


def spec(over):
    """Of an operand that varies over these axes: of its first two dimensions a rank gets an entry or all."""
    return P(*(name if name in over else None for name in ("a", "b")))


def varying(y):
    return frozenset(jax.typeof(y).manual_axis_type.varying)


def vectors(over, which=None):
    """Offsets and sizes by which each rank sends a row to each; typed as varying over ``over``, or one of them is."""
    one, rank = jnp.ones(2, jnp.int32), jax.lax.axis_index("b")
    missing = tuple(over - {"b"})

    def typed(i, v):
        return jaxring.pcast(v, missing) if missing and which in (None, i) else v

    return [typed(i, v) for i, v in enumerate((jnp.arange(2), one, one * rank, one))]


def ragged(x, which=()):
    operands = [x if 0 in which else jnp.zeros((4, 2)), x if 1 in which else jnp.ones((4, 2))]
    moving = vectors(varying(x) if 2 in which else frozenset())
    return jaxring.ragged_all_to_all(*operands, *moving, axis_name="b")


def received(x):
    token = jaxring.send(x, "b", [(0, 1), (1, 0)])
    return jaxring.recv(x, "b", [(0, 1), (1, 0)], token)[0]


# Of a value of shape (4, 2) over axis b, whose result is typed as the operand is, and over b.
RANKS_DIFFER = {
    "all_gather": lambda x: jaxring.all_gather(x, "b"),
    "reduce_scatter": lambda x: jaxring.reduce_scatter(x, "b", tiled=True, assume_replicated=True),
    "all_to_all": lambda x: jaxring.all_to_all(x, "b", 0, 0, tiled=True),
    "permute": lambda x: jaxring.permute(x, "b", [(0, 1)]),
    "reduce": lambda x: jaxring.reduce(x, "b", root=1, assume_replicated=True),
    "gather": lambda x: jaxring.gather(x, "b"),
    "scatter": lambda x: jaxring.scatter(x, "b", tiled=True),
    "grouped all_reduce": lambda x: jaxring.all_reduce(x, "b", axis_index_groups=[[0], [1]], assume_replicated=True),
    "grouped broadcast": lambda x: jaxring.broadcast(x, "b", axis_index_groups=[[0], [1]]),
    "pcast": lambda x: jaxring.pcast(x, "b"),
    "ragged operand": lambda x: ragged(x, (0,)),
    "ragged output": lambda x: ragged(x, (1,)),
    "ragged sizes": lambda x: ragged(x, (2,)),
    "ragged batch": lambda x: jax.vmap(lambda v: ragged(v, (0,)))(jnp.stack([x, x])),
    "started permute": lambda x: jaxring.permute_start(x, "b", [(0, 1)]).done(),
    "started all_to_all": lambda x: jaxring.all_to_all_start(x, "b", 0, 0, tiled=True).done(x)[0],
    "vmapped": lambda x: jax.vmap(lambda v: jaxring.permute(v, ("v", "b"), [(0, 3)]), axis_name="v")(x[:2]),
}
# Whose result is one value along b.
RANKS_AGREE = {
    "all_reduce": lambda x: jaxring.all_reduce(x, "b", assume_replicated=True),
    "max": lambda x: jaxring.all_reduce(x, "b", "max"),
    "broadcast": lambda x: jaxring.broadcast(x, "b", 1),
    "started all_reduce": lambda x: jaxring.all_reduce_start(x, "b", assume_replicated=True).done(),
    "started broadcast": lambda x: jaxring.broadcast_start(x, "b").done(),
    "vmapped all_reduce": lambda x: jax.vmap(
        lambda v: jaxring.all_reduce(v, ("b", "v"), assume_replicated=True), axis_name="v"
    )(x),
}
# What is received varies as the value that was sent, of which its type knows nothing.
UNKNOWN = {
    "recv": received,
    "recv batch": lambda x: jax.vmap(received)(jnp.stack([x, x])),
}
CALLS = RANKS_DIFFER | RANKS_AGREE | UNKNOWN


def test_every_primitive_is_here():
    assert set(PRIMITIVES) - {"barrier"} <= set(CALLS)


def expected(name, over):
    if name in UNKNOWN:
        return frozenset("ab")
    return over | {"b"} if name in RANKS_DIFFER else over - {"b"}


@pytest.mark.parametrize("over", OVER, ids=lambda over: "".join(sorted(over)) or "none")
def test_a_result_varies_over_all_that_an_operand_does(over):
    """And no more than its type says: the values of all ranks are looked at."""
    types = {}

    def rank(x):
        found = {name: f(x[0, 0]) for name, f in CALLS.items()}
        types.update({name: varying(y) for name, y in found.items()})
        return {name: jaxring.pcast(y, ("a", "b"))[None, None] for name, y in found.items()}

    got = jax.jit(jax.shard_map(rank, mesh=MESH, in_specs=spec(over), out_specs=P("a", "b")))(X)
    assert types == {name: expected(name, over) for name in CALLS}
    for name, y in got.items():
        for dimension, axis in enumerate("ab"):
            if axis not in types[name]:
                first, second = np.split(y, 2, axis=dimension)
                np.testing.assert_array_equal(first, second, err_msg=f"{name} over {axis}")


@pytest.mark.parametrize("name", ["ragged operand", "ragged output", "ragged sizes", "recv", "permute", "scatter"])
def test_specs_that_leave_out_an_axis_are_refused(name):
    mapped = jax.shard_map(lambda x: CALLS[name](x[0, 0]), mesh=MESH, in_specs=P("a", "b"), out_specs=P("b"))
    with pytest.raises(ValueError, match="out_specs"):
        jax.eval_shape(mapped, X)


def test_tokens_and_barriers():
    """A token has one value, whatever is sent."""

    def rank(x):
        token = jaxring.send(x[0, 0], "b", [(0, 1), (1, 0)])
        _, token = jaxring.recv(x[0, 0], "b", [(0, 1), (1, 0)], token)
        assert varying(token) == {"b"}
        assert varying(jaxring.barrier("b")) == set()
        return token[None]

    jax.eval_shape(jax.shard_map(rank, mesh=MESH, in_specs=P("a", "b"), out_specs=P("b")), X)


def loss(x, output, over):
    return jnp.sum(jaxring.ragged_all_to_all(x, output, *vectors(over), axis_name="b") ** 2)


def gradients(over, sizes_over):
    """Under both ways to check, of operands that vary over ``over``."""

    def typed(x):
        return jax.tree.map(lambda g: jaxring.pcast(g, ("a", "b"))[None, None], jax.grad(loss, (0, 1))(*x, sizes_over))

    def untyped(x):
        found = jax.grad(loss, (0, 1))(*x, frozenset())
        missing = tuple((sizes_over | {"b"}) - over)  # a gradient is summed over what its operand is the same on
        return jax.tree.map(lambda g: (jaxring.all_reduce(g, missing) if missing else g)[None, None], found)

    for f, check in ((typed, True), (untyped, False)):
        mapped = jax.shard_map(
            lambda x, f=f: f((x[0, 0], 2 * x[0, 0])),
            mesh=MESH,
            in_specs=spec(over),
            out_specs=P("a", "b"),
            check_vma=check,
        )
        yield jax.jit(mapped)(X)


@pytest.mark.parametrize("over", OVER, ids=lambda over: "".join(sorted(over)) or "none")
@pytest.mark.parametrize("sizes_over", [frozenset("b"), frozenset("ab")], ids=["sizes b", "sizes ab"])
def test_the_gradient_of_ragged_all_to_all(over, sizes_over):
    typed, untyped = gradients(over, sizes_over)
    jax.tree.map(np.testing.assert_array_equal, typed, untyped)


def test_its_second_derivative_and_tangents():
    def rank(x):
        v = x[0, 0]
        first = jax.grad(loss)
        _, second = jax.jvp(lambda u: first(u, jnp.ones((4, 2)), frozenset("ab")), (v,), (jnp.ones_like(v),))
        return second[None, None]

    got = jax.jit(jax.shard_map(rank, mesh=MESH, in_specs=P("a", "b"), out_specs=P("a", "b")))(X)
    np.testing.assert_array_equal(got, np.broadcast_to([[2, 2], [2, 2], [0, 0], [0, 0]], got.shape))
