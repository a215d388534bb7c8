"""`jaxring.sharded` against NumPy: values and shardings, on meshes of both kinds of axes, eager and under jit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import sharded
from tests.sharded import shard_oracle

CALLS = {
    "all_reduce": {"op": "max"},
    "all_gather": {},
    "reduce_scatter": {"op": "sum"},
    "all_to_all": {"split_axis": 1, "concat_axis": 0},
    "permute": {"perm": [(0, 1), (1, 0)]},
    "broadcast": {"root": 1},
}
# mesh shape, axis, spec, the dimension that is cut, ranks, positions of other axes that cut it too, that cut the first
PLACES = {
    "1-D": ((8,), "x", None, 0, 8, 1, 1),
    "2-D": ((4, 2), "x", None, 0, 4, 1, 1),
    "other axis kept": ((4, 2), "y", P("x", "y"), 1, 2, 1, 4),
    "both axes": ((2, 4), ("x", "y"), P(None, ("x", "y")), 1, 8, 1, 1),
    "inner of two": ((2, 4), "y", P(("x", "y")), 0, 4, 2, 1),
}
TYPES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
X = np.random.default_rng(0).integers(-9, 9, (64, 64)).astype(np.float32)


def make(shape, kind="Auto"):
    names = ("x", "y")[: len(shape)]
    return Mesh(np.array(jax.devices()).reshape(shape), names, axis_types=(TYPES[kind],) * len(shape))


def cut(spec, axis):
    """The entries of `spec` without `axis`, as tuples."""
    names = (axis,) if isinstance(axis, str) else axis
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return [tuple(n for n in e if n not in names) for e in entries]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(7)
def test_values_and_shardings(name, place, kind):
    shape, axis, spec, dimension, ranks, outer, rows = PLACES[place]
    mesh, options = make(shape, kind), CALLS[name]
    oracle = getattr(shard_oracle, name)
    expected = np.concatenate([oracle(part, ranks, dimension, outer, **options) for part in np.split(X, rows)])

    def call(x):
        return getattr(sharded, name)(x, mesh, axis, spec=spec, **options)

    spec = P(axis) if spec is None else spec
    out = P(*cut(spec, axis)) if name in ("all_reduce", "all_gather", "broadcast") else spec
    for result in (call(X), jax.jit(call)(jax.device_put(X, NamedSharding(mesh, spec)))):
        np.testing.assert_array_equal(np.asarray(result), expected)
        assert result.sharding.is_equivalent_to(NamedSharding(mesh, out), result.ndim), result.sharding


@pytest.mark.parametrize("kind", TYPES)
def test_the_mesh_of_the_context_and_operands_of_other_shardings(kind):
    mesh = make((4, 2), kind)
    expected = shard_oracle.all_reduce(X + 1, 4, 0)
    with jax.set_mesh(mesh):
        for spec in (P(), P("y"), P(None, "x"), P("x")):
            x = jax.device_put(X, NamedSharding(mesh, spec))
            result = jax.jit(lambda x: sharded.all_reduce(x + 1, None, "x"))(x)
            np.testing.assert_array_equal(np.asarray(result), expected)


def test_an_abstract_mesh_serves_any_devices():
    mesh = make((4, 2))
    call = jax.jit(lambda x: sharded.permute(x, mesh.abstract_mesh, "x", [(0, 3)]))
    expected = shard_oracle.permute(X, 4, 0, perm=[(0, 3)])
    for order in (slice(None), slice(None, None, -1)):
        devices = np.array(jax.devices()[order]).reshape(4, 2)
        x = jax.device_put(X, NamedSharding(Mesh(devices, ("x", "y")), P("x")))
        np.testing.assert_array_equal(np.asarray(call(x)), expected)


def test_a_mesh_of_mixed_axes():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    result = jax.jit(lambda x: sharded.all_reduce(x, mesh, "x", spec=P("x", "y")))(X)
    np.testing.assert_array_equal(np.asarray(result), shard_oracle.all_reduce(X, 4, 0))


def test_pytrees_and_choices():
    mesh = make((8,))
    tree = {"a": X, "b": [X[:, 0].astype(np.int32), X.reshape(64, 8, 8)]}
    result = sharded.all_reduce(tree, mesh, "x", "sum", algorithm="ring", timeout=30.0)
    expected = jax.tree.map(lambda v: shard_oracle.all_reduce(v, 8, 0), tree)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), b), result, expected)
    assert {plan.algorithm for plan in jaxring.plans()[-3:]} == {"ring"}


def test_under_vmap():
    mesh = make((4, 2))
    result = jax.jit(jax.vmap(lambda x: sharded.all_reduce(x, mesh, "x"), in_axes=1, out_axes=1))(X)
    np.testing.assert_array_equal(np.asarray(result), shard_oracle.all_reduce(X, 4, 0))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: sharded.all_reduce(X, m, "z"), "the mesh has no axis 'z'; it has 'x', 'y'"),
        (lambda m: sharded.all_reduce(X, None, "x"), "there is no mesh in scope"),
        (lambda m: sharded.all_reduce(X, m, "x", spec=P("y")), "does not say which dimension axis 'x' cuts"),
        (lambda m: sharded.all_gather(X, m, "x", spec=P(("x", "y"))), "does not say which dimension axis 'x' cuts"),
        (lambda m: sharded.all_reduce(X[:6], m, "x"), "cannot be cut into 4 equal blocks; pad it"),
        (lambda m: sharded.all_reduce(X[0], m, "x", spec=P(None, "x")), "fewer dimensions than spec has entries"),
        (lambda m: sharded.reduce_scatter(X[:8], m, "x"), "jaxring.reduce_scatter: dimension 0"),
        (lambda m: sharded.broadcast(X, m, "x", 4), "root=4 is no rank"),
        (lambda m: sharded.all_reduce(X, m, "x", "middle"), "unknown op 'middle'"),
    ],
)
def test_what_does_not_fit_is_said_while_tracing(call, says):
    mesh = make((4, 2))
    with pytest.raises(ValueError) as error:
        jax.eval_shape(lambda: call(mesh))
    assert says in str(error.value)


def test_inside_shard_map_it_points_to_the_other_collectives():
    mesh = make((8,))
    f = jax.shard_map(lambda x: sharded.all_reduce(x, mesh, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    with pytest.raises(ValueError, match=r"inside jax.shard_map; use jaxring.all_reduce there"):
        jax.eval_shape(f, X)


def test_shapes_are_known_without_running():
    mesh = make((4, 2))
    shape = jax.eval_shape(
        lambda x: sharded.all_reduce(x, mesh, "x", "mean"), jax.ShapeDtypeStruct((8, 3), jnp.bfloat16)
    )
    assert (shape.shape, shape.dtype) == ((2, 3), jnp.bfloat16)
