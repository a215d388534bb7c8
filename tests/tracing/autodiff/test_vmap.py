"""vmap over the collectives' own axes: mixed with mesh axes, nested, shadowed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.tracing.autodiff.ad_table import N, close, mesh, quick

SCATTERED = [(0, 3), (3, 0), (1, 1), (2, 6), (7, 2), (6, 4)]


def collectives(v, axes):
    """Every collective over 8 ranks; ``v`` of shape (8, 2)."""
    ring = [(i, (i + 3) % 8) for i in range(8)]
    return {
        "sum": jaxring.all_reduce(v, axes),
        "mean": jaxring.all_reduce(v, axes, "mean"),
        "max": jaxring.all_reduce(v, axes, "max"),
        "prod": jaxring.all_reduce(v, axes, "prod"),
        "all_gather": jaxring.all_gather(v, axes),
        "reduce_scatter": jaxring.reduce_scatter(v, axes),
        "reduce_scatter min": jaxring.reduce_scatter(v, axes, "min"),
        "all_to_all": jaxring.all_to_all(v, axes, 0, 0),
        "permute": jaxring.permute(v, axes, ring),
        "permute some": jaxring.permute(v, axes, SCATTERED),
        "broadcast": jaxring.broadcast(v, axes, 5),
        "reduce": jaxring.reduce(v, axes, "sum", 3),
        "gather": jaxring.gather(v, axes, 6),
        "scatter": jaxring.scatter(v, axes, 1),
        "bits": jaxring.all_reduce((v > 0.5).astype(jnp.int32), axes, "xor"),
        "rank": jaxring.all_gather(lax.axis_index(axes), axes),
        "barrier": jaxring.barrier(axes),
    }


def scalar(tree):
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(jnp.sum(jnp.sin(leaf) * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)) for leaf in floats)


@pytest.fixture(scope="module")
def flat():
    """Values and gradients over one vmapped axis, which test_against_lax compares with lax's."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(8, 8, 2))
        run = jax.vmap(functools.partial(collectives, axes="r"), axis_name="r")
        return x, quick(run)(x), quick(jax.grad(lambda v: scalar(run(v))))(x)


@pytest.mark.parametrize(
    ("names", "check_vma"),
    [
        (("x", "i", "y"), True),
        (("i", "y", "x"), False),
        (("i", "x", "j"), True),
        (("x", "j", "i"), False),
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_mesh_axes_and_vmapped_axes_together(flat, names, check_vma):
    """The rank is the row-major index over the tuple, whatever its axes are and however the vmaps are nested."""
    x, values, gradient = flat
    mesh_names = tuple(sorted(name for name in names if name in "xy"))
    vmapped = tuple(sorted(name for name in names if name in "ij"))
    grid = Mesh(np.array(jax.devices()[: 2 ** len(mesh_names)]).reshape([2] * len(mesh_names)), mesh_names)
    order = [names.index(name) for name in (*mesh_names, *vmapped)]

    def apart(v):
        """From ranks in front to mesh axes, then vmapped axes."""
        return jnp.transpose(v.reshape(2, 2, 2, *v.shape[1:]), [*order, *range(3, v.ndim + 2)])

    def together(v):
        return jnp.transpose(v, [*np.argsort(order), *range(3, v.ndim)]).reshape(8, *v.shape[3:])

    def run(v):
        f = functools.partial(collectives, axes=names)
        for name in reversed(vmapped):
            f = jax.vmap(f, axis_name=name)

        def local(w):
            lead = len(mesh_names)
            return jax.tree.map(lambda leaf: leaf.reshape(*[1] * lead, *leaf.shape), f(w.reshape(w.shape[lead:])))

        spec = P(*mesh_names)
        mapped = jax.shard_map(local, mesh=grid, in_specs=spec, out_specs=spec, check_vma=check_vma)
        return jax.tree.map(together, mapped(apart(v)))

    got, slope = quick(lambda v: (run(v), jax.grad(lambda w: scalar(run(w)))(v)))(x)
    close(got, values, "value")
    close(slope, gradient, "gradient")


def test_vmap_outside_of_shard_map(flat):
    x, values, _ = flat
    mapped = jax.shard_map(
        lambda v: jax.tree.map(lambda leaf: leaf[None], collectives(v[0], ("i", "x"))),
        mesh=mesh("x"),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    got = quick(jax.vmap(mapped, axis_name="i", in_axes=0))(x.reshape(2, 4, 8, 2))
    got = jax.tree.map(lambda v: v.reshape(8, *v.shape[2:]), got)
    close(got, values)


def test_what_is_not_batched(flat):
    """Over its own axis, a value that is the same for all entries counts as often as there are entries."""
    x = np.arange(6.0).reshape(3, 2)

    def ours(v):
        blocks = jnp.stack([v] * N)
        return (
            [jaxring.all_reduce(v, "i", op) for op in ("sum", "mean", "max", "min", "prod")]
            + [jaxring.all_gather(v, "i"), jaxring.reduce_scatter(blocks, "i"), jaxring.all_to_all(blocks, "i", 0, 0)]
            + [jaxring.broadcast(v, "i", 1), jaxring.permute(v, "i", [(0, 1)]), jaxring.all_reduce(1, "i")]
        )

    got = jax.vmap(lambda _: ours(x), axis_name="i", axis_size=N)(np.arange(N))
    every = jax.vmap(ours, axis_name="i")(np.stack([x] * N))
    close(got, every)


def test_narrow_floats_are_rounded_once():
    x = np.ones((8, 1), jnp.bfloat16)
    x[3] = 256
    got = jax.vmap(lambda v: jaxring.all_reduce(v, "i"), axis_name="i")(x)
    assert got.dtype == jnp.bfloat16
    assert {float(v) for v in got[:, 0]} == {264.0}
    mixed = jax.shard_map(
        jax.vmap(lambda v: jaxring.all_reduce(v, ("x", "i")), axis_name="i"),
        mesh=mesh("x"),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    assert {float(v) for v in jax.jit(mixed)(x)[:, 0]} == {264.0}


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("size", [4, 3])
def test_a_vmapped_axis_may_hide_a_mesh_axis(size, check_vma):
    """The innermost axis of a name is meant."""
    x = np.arange(4.0 * size).reshape(4, size)
    mapped = jax.shard_map(
        lambda v: jax.vmap(lambda w: jaxring.all_reduce(w, "x"), axis_name="x")(v[0])[None],
        mesh=mesh("x"),
        in_specs=P("x"),
        out_specs=P("x"),
        check_vma=check_vma,
    )
    close(mapped(x), np.repeat(x.sum(1, keepdims=True), size, 1))


def test_spmd_axis_name():
    grid = mesh("x", "y")
    x = np.random.default_rng(0).normal(size=(2, 4, 3))

    def run(reduce, gather):
        def f(v):
            return reduce(jnp.sin(v), "x") + jnp.sum(gather(v, "x"))

        mapped = jax.shard_map(f, mesh=grid, in_specs=P("x"), out_specs=P("x"))
        batched = jax.vmap(mapped, spmd_axis_name="y")
        return quick(lambda v: (batched(v), jax.grad(lambda w: scalar(batched(w)))(v)))(x)

    close(run(jaxring.all_reduce, jaxring.all_gather), run(lax.psum, lax.all_gather))
    own = jax.vmap(lambda v: jaxring.all_reduce(v, "i"), axis_name="i", spmd_axis_name="y")
    with jax.set_mesh(grid):
        close(quick(own)(x), np.broadcast_to(x.sum(0), x.shape))
    mapped = jax.shard_map(lambda v: jaxring.all_reduce(v, ("i", "x")), mesh=grid, in_specs=P("x"), out_specs=P())
    with pytest.raises(NotImplementedError, match=r"jaxring\.all_reduce: axis 'i'.*spmd_axis_name"):
        jax.vmap(mapped, axis_name="i", spmd_axis_name="y")(x)


def test_vmap_of_pmap_and_in_pmap():
    x = np.random.default_rng(0).normal(size=(N, 5, 3))

    def run(reduce):
        a = jax.vmap(jax.pmap(lambda v: reduce(jnp.sin(v), "p"), axis_name="p"), in_axes=1)(x)
        b = jax.pmap(jax.vmap(lambda v: v * reduce(v, "i"), axis_name="i"), axis_name="p")(x)
        return a, b

    close(run(jaxring.all_reduce), run(lax.psum))


def test_groups():
    groups = [[0, 3], [2, 1]]
    x = np.random.default_rng(0).normal(size=(N, 2, 3))

    def run(reduce):
        f = jax.vmap(lambda v: jax.grad(lambda w: scalar(reduce(jnp.sin(w), "x", axis_index_groups=groups)))(v))
        return jax.shard_map(f, mesh=mesh("x"), in_specs=P(None, "x"), out_specs=P(None, "x"), check_vma=False)(
            x.transpose(1, 0, 2)
        )

    close(run(jaxring.all_reduce), run(lax.psum))
    for op in (lax.psum, jaxring.all_reduce):
        with pytest.raises(NotImplementedError, match="axis_index_groups"):
            jax.vmap(lambda v, op=op: op(v, "i", axis_index_groups=groups), axis_name="i")(x)


def test_jit_and_control_flow_inside_vmap():
    x = np.random.default_rng(0).normal(size=(N, 3))

    def run(reduce):
        def f(v):
            v = jax.jit(lambda w: reduce(w, "i"))(v) + v
            v, _ = lax.scan(lambda c, k: (reduce(c, "i") * k + c, None), v, jnp.linspace(0, 1, 3))
            v = lax.cond(reduce(v[0], "i") > 0, lambda w: reduce(w, "i"), lambda w: -w, v)
            return lax.while_loop(lambda c: reduce(c[0], "i") < 50, lambda c: c + 1.0 + v**2, v)

        return quick(jax.vmap(f, axis_name="i"))(x)

    close(run(jaxring.all_reduce), run(lax.psum))
