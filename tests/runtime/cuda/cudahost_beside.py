"""Nonblocking collectives on GPUs: what they give under JAX's transformations, and what runs in between."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.overlap.over_program import operand, program


def halves(start, **options):
    """A nonblocking collective with compute between, the handle done twice."""

    def f(x):
        handle = start(x, "r", **options)
        y, z = handle.done(jnp.sin(x))
        return y.sum() + z + 2 * handle.done().sum()

    return f


def whole(collective, **options):
    return lambda x: 3 * collective(x, "r", **options).sum() + jnp.sin(x)


def carried(x):
    """A handle that a loop carries, one that is done in a loop's body, and one that nobody asks for."""
    turn = [(i, (i + 1) % jax.lax.axis_size("r")) for i in range(jax.lax.axis_size("r"))]
    outer = jaxring.all_reduce_start(x, "r")
    jaxring.all_reduce_start(x * 2, "r")

    def step(handle, _):
        y, total = handle.done(outer.done())
        return jaxring.permute_start(y, "r", turn), y + total

    handle, seen = jax.lax.scan(step, jaxring.permute_start(x, "r", turn), length=3)
    return handle.done() + 10 * seen.sum(0)


def carried_plainly(x):
    n = jax.lax.axis_size("r")
    turn = [(i, (i + 1) % n) for i in range(n)]
    total, seen = jaxring.all_reduce(x, "r"), 0
    for _ in range(3):
        x = jaxring.permute(x, "r", turn)
        seen = seen + x + total
    return jaxring.permute(x, "r", turn) + 10 * seen


def close(mesh, ours, theirs, x, transform=lambda f: f):
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
    sharding = jax.sharding.NamedSharding(mesh, P("r"))
    given = jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])
    got, expected = (jax.jit(transform(shard(f)))(given).addressable_shards for f in (ours, theirs))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one.data), np.asarray(other.data), rtol=1e-5)


def values(starts):
    """``starts()`` counts the collectives that went beside so far."""
    mesh = Mesh(np.array(jax.devices()), ("r",))
    n, here = mesh.size, len(jax.local_devices())
    x = np.linspace(0, 1, n * n * 6, dtype=np.float32).reshape(n * n, 6)
    cases = [
        ("all_reduce", {"op": "max"}),
        ("all_gather", {"axis": 1}),
        ("all_gather", {"tiled": True}),
        ("reduce_scatter", {"tiled": True}),
        ("all_to_all", {"split_axis": 0, "concat_axis": 1, "tiled": True}),
        ("permute", {"perm": [(i, (i + 1) % n) for i in range(n)]}),
        ("broadcast", {"root": 1}),
    ]
    for name, options in cases:
        before = starts()
        pair = halves(getattr(jaxring, f"{name}_start"), **options), whole(getattr(jaxring, name), **options)
        close(mesh, *pair, x)
        assert starts() == before + here, (name, starts(), before)
    gather = halves(jaxring.all_gather_start), whole(jaxring.all_gather)
    close(mesh, *gather, x, lambda f: jax.grad(lambda v: jnp.sum(f(v) ** 2)))
    close(mesh, *gather, x, lambda f: lambda v: jax.jvp(f, (v,), (jnp.cos(v),))[1])
    reduce = [jax.vmap(f, in_axes=1, out_axes=1) for f in (halves(jaxring.all_reduce_start), whole(jaxring.all_reduce))]
    close(mesh, *reduce, x)
    before = starts()
    close(mesh, carried, carried_plainly, x)
    # The permutes: one before the loop and three in it. The one that is done in the body runs in its place.
    assert starts() == before + 4 * here, (starts(), before)


def overlap(in_flight):
    """Rank 1 comes when rank 0's step between start and done has run: what that step saw in flight."""
    ran, seen, armed = threading.Event(), [], []

    def hold(rank):
        if armed and rank == 1:
            ran.wait(20)

    def between(rank, _):
        if armed and rank == 0:
            seen.append(in_flight())
            ran.set()

    mesh = Mesh(jax.devices()[:2], ("r",))
    run = program(mesh, jaxring.all_reduce_start, hold, between, timeout=20, ordered=True)
    first = np.asarray(run(operand(2)))
    armed.append(True)
    np.testing.assert_array_equal(np.asarray(run(operand(2))), first)
    assert seen == [1], seen
