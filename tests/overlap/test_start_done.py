"""Start and done together are the collective itself, under every transformation."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxring

N = 4
PAIRS = {
    "all_reduce": (jaxring.all_reduce, jaxring.all_reduce_start, {"op": "max"}),
    "all_gather": (jaxring.all_gather, jaxring.all_gather_start, {"axis": 1}),
    "reduce_scatter": (jaxring.reduce_scatter, jaxring.reduce_scatter_start, {"tiled": True}),
    "all_to_all": (jaxring.all_to_all, jaxring.all_to_all_start, {"split_axis": 0, "concat_axis": 1, "tiled": True}),
    "permute": (jaxring.permute, jaxring.permute_start, {"perm": [(i, (i + 1) % N) for i in range(N)]}),
    "broadcast": (jaxring.broadcast, jaxring.broadcast_start, {"root": 2}),
}


@pytest.fixture
def mesh():
    return Mesh(jax.devices()[:N], ("r",))


def shard(mesh, f, check_vma=False, **options):
    return jax.shard_map(f, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=check_vma, **options)


def tree():
    rng = np.random.default_rng(0)
    return {"a": rng.standard_normal((N * 8, 4), np.float32), "b": [rng.integers(0, 99, (N * 4, 2, 3))]}


def same(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), ours, theirs)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_values_and_types(mesh, name, check_vma):
    collective, start, options = PAIRS[name]

    def alone(x):
        return jax.lax.pcast(y, "r", to="varying") if "r" not in jax.typeof(y := x).manual_axis_type.varying else y

    def plain(x):
        y = collective(x, "r", **options)
        return jax.tree.map(alone, y) if check_vma else y

    def halves(x):
        handle = start(x, axis_name="r", **options)
        z = jax.tree.map(lambda v: v * 3, x)
        y, z, w = handle.done(z, 7.0)
        assert w == 7.0
        assert jax.tree.map(jax.typeof, y) == jax.tree.map(jax.typeof, handle.done())
        return (jax.tree.map(alone, y) if check_vma else y), z

    ours, z = jax.jit(shard(mesh, halves, check_vma))(tree())
    same(ours, jax.jit(shard(mesh, plain, check_vma))(tree()))
    same(z, jax.tree.map(lambda v: v * 3, tree()))


def test_a_step_as_epilogue(mesh):
    x = np.arange(N * N * 3, dtype=np.float32).reshape(N * N, 3)
    params, trace = np.ones((N, 3), np.float32), np.full((N, 3), 2, np.float32)

    def f(x, params, trace):
        step = jaxring.epilogues.sgd(params, 0.5, momentum=0.5, trace=trace)
        new, z = jaxring.reduce_scatter_start(x, "r", tiled=True, epilogue=step).done(x + 1)
        return *new, z

    total = x.reshape(N, N, 3).sum(0) + 1
    same(jax.jit(shard(mesh, f))(x, params, trace), (1 - total / 2, total, x + 1))


EPILOGUES = {
    "scale": lambda params: jaxring.epilogues.scale(2),
    "step": lambda params: jaxring.epilogues.sgd(params, 0.5),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_without_states_behind_a_move_of_axes(mesh, name):
    x = np.arange(3 * N * N * N, dtype=np.float32).reshape(N, 3, N * N)
    params = np.arange(3 * N * N, dtype=np.float32).reshape(N, 3, N)
    epilogue = EPILOGUES[name]

    def halves(x, params):
        started = jaxring.reduce_scatter_start(x[0], "r", scatter_dimension=1, tiled=True, epilogue=epilogue(params[0]))
        assert jax.tree.structure(started).num_leaves == 1
        return started.done()[None]

    def whole(x, params):
        options = {"scatter_dimension": 1, "tiled": True, "epilogue": epilogue(params[0])}
        return jaxring.reduce_scatter(x[0], "r", **options)[None]

    def between(x, params):
        options = {"scatter_dimension": 1, "tiled": True, "epilogue": epilogue(params[0])}
        y, z = jaxring.reduce_scatter_start(x[0], "r", **options).done(x + 1)
        return y[None] * z.sum()

    expected = jax.jit(shard(mesh, whole))(x, params)
    total = x.sum(0).reshape(3, N, N).transpose(1, 0, 2)
    same(expected, total * 2 if name == "scale" else params - total / 2)
    same(jax.jit(shard(mesh, halves))(x, params), expected)
    sums = (x + 1).reshape(N, -1).sum(1)
    same(jax.jit(shard(mesh, between))(x, params), expected * sums[:, None, None])


def test_eagerly(mesh):
    def f(x):
        y, z = jaxring.all_reduce_start(x, "r").done(x + 1)
        return y * z

    x = np.arange(8.0, dtype=np.float32)
    parts = x.reshape(N, 2)
    same(shard(mesh, f)(x), (parts.sum(0) * (parts + 1)).reshape(-1))


def test_a_handle_leaves_jit_and_is_done_outside(mesh):
    start = jax.jit(shard(mesh, lambda x: jaxring.permute_start(x, "r", [(0, 1)])))
    handle = start(np.arange(4.0, dtype=np.float32))
    assert isinstance(handle, jaxring.Handle)
    same(handle.done(), np.array([0, 0, 0, 0], np.float32))
    same(start(np.arange(1.0, 5.0, dtype=np.float32)).done(1)[0], np.array([0, 1, 0, 0], np.float32))


def test_a_handle_is_carried_by_a_loop(mesh):
    turn = [(i, (i + 1) % N) for i in range(N)]

    def f(x):
        def step(handle, _):
            x = handle.done()
            return jaxring.permute_start(x, "r", turn), x

        handle, seen = jax.lax.scan(step, jaxring.permute_start(x, "r", turn), length=3)
        return handle.done() + 10 * seen.sum(0)

    x = np.arange(N, dtype=np.float32)
    rolled = [np.roll(x, k) for k in range(1, 5)]
    same(jax.jit(shard(mesh, f))(x), rolled[3] + 10 * sum(rolled[:3]))


def test_under_vmap(mesh):
    def f(x):
        y, z = jaxring.all_reduce_start(x, "r").done(jnp.sin(x))
        return y * z

    def plain(x):
        return jaxring.all_reduce(x, "r") * jnp.sin(x)

    x = np.random.default_rng(1).standard_normal((N * 2, 3, 5)).astype(np.float32)
    mapped = functools.partial(jax.vmap, in_axes=1, out_axes=2)
    same(jax.jit(shard(mesh, mapped(f)))(x), jax.jit(shard(mesh, mapped(plain)))(x))


def test_keys_pass_through(mesh):
    def f(x):
        y, key = jaxring.all_reduce_start(x, "r").done(jax.random.key(3))
        return y + jax.random.uniform(key, x.shape)

    x = np.arange(4.0, dtype=np.float32)
    same(jax.jit(shard(mesh, f))(x), np.full(4, 6, np.float32) + np.asarray(jax.random.uniform(jax.random.key(3), 1)))


def test_with_axes_left_to_the_partitioner():
    mesh = jax.make_mesh((2, 2), ("r", "rest"), axis_types=(AxisType.Auto, AxisType.Auto), devices=jax.devices()[:4])

    def f(x):
        y, z = jaxring.all_reduce_start(x, "r").done(x * 2)
        return y + z

    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    ours = jax.jit(shard(mesh, f, axis_names={"r"}))(x)
    parts = x.reshape(2, 2, 2)
    same(ours, (parts.sum(0) + 2 * parts).reshape(4, 2))


def test_what_is_passed_is_a_step_of_its_own(mesh):
    """XLA would compute the sine where it is used, after the collective."""

    def text(f):
        return jax.jit(shard(mesh, f)).lower(jax.ShapeDtypeStruct((N * 256,), jnp.float32)).compile().as_text()

    def steps(program):
        entry = program[program.index("ENTRY") :].splitlines()
        at = {key: i for i, line in enumerate(entry) for key in ("sine", '"jaxring_all_reduce"', "ROOT") if key in line}
        return at["sine"], at["ROOT"]

    def passed(x):
        y, z = jaxring.all_reduce_start(x, "r").done(jnp.sin(x))
        return y * z

    sine, root = steps(text(passed))
    assert sine < root
    sine, root = steps(text(lambda x: jaxring.all_reduce_start(x, "r").done() * jnp.sin(x)))
    assert sine == root


@pytest.mark.parametrize("transform", [jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1]])
@pytest.mark.parametrize("check_vma", [False, True])
def test_derivatives(mesh, transform, check_vma):
    def loss(collect):
        def f(x):
            return jnp.sum(collect(jnp.sin(x)) ** 3)

        return f

    def halves(x):
        y, z = jaxring.all_gather_start(x, "r", tiled=True).done(jnp.tanh(x))
        return y.sum() * z

    def plain(x):
        return jax.lax.all_gather(x, "r", tiled=True).sum() * jnp.tanh(x)

    x = np.linspace(0, 1, N * 6, dtype=np.float32)
    ours, theirs = (transform(loss(shard(mesh, f, check_vma))) for f in (halves, plain))
    np.testing.assert_allclose(jax.jit(ours)(x), jax.jit(theirs)(x), rtol=1e-6)
