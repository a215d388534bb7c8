"""A job of plain `jit`, which does not import jaxring: reshard, sums, products, loops and gradients, against NumPy."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

devices = np.array(jax.devices())
mesh = Mesh(devices[[3, 0, 2, 1]].reshape(2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
whole = np.arange(256, dtype=np.float32).reshape(16, 16) % 11


def place(*spec):
    return NamedSharding(mesh, P(*spec))


def local(x):
    """The part of an array that this process has, and where it lies in the whole."""
    return [(shard.index, np.asarray(shard.data)) for shard in x.addressable_shards]


def check(x, expected):
    for index, part in local(x):
        np.testing.assert_allclose(part, expected[index], rtol=1e-5)


x = jax.make_array_from_callback(whole.shape, place("x", "y"), lambda index: whole[index])
if jax.process_index() == 0:
    # It traces what the program uses in another place than process 1 does.
    print(np.asarray(jnp.roll(jnp.ones(4), 1)).sum())


@jax.jit
def program(x):
    moved = jax.lax.with_sharding_constraint(x + 1, place("y", "x"))
    rolled = jnp.roll(x, 3, 0)
    looped = jax.lax.fori_loop(0, 3, lambda i, c: c + c.max(), x.sum(0))
    return moved, rolled, looped, x @ x.T, x.astype(jnp.bfloat16).sum(1)


looped = whole.sum(0)
for _ in range(3):
    looped = looped + looped.max()
expected = (whole + 1, np.roll(whole, 3, 0), looped, whole @ whole.T, whole.sum(1))
for _ in range(3):
    results = program(x)
    for got, want in zip(results[:-1], expected[:-1], strict=True):
        check(got, want)
    check(results[-1].astype(jnp.float32), jnp.asarray(expected[-1]).astype(jnp.bfloat16).astype(np.float32))
# All-to-alls among all, and among pairs within a process and between two; of odd sizes.
tall = np.arange(28 * 12).reshape(28, 12) % 7
for dtype in (np.float32, jnp.bfloat16, np.bool_, jnp.int4):
    odd = tall.astype(dtype)
    for axes in (("x", "y"), "x", "y"):
        sharded = jax.make_array_from_callback(odd.shape, place(axes, None), lambda index, odd=odd: odd[index])
        swap = jax.jit(lambda x: x, out_shardings=place(None, axes))
        check(swap(sharded).astype(jnp.float32), odd.astype(np.float32))
gradient = jax.jit(jax.grad(lambda w, x: ((x @ w) ** 2).sum()))
check(gradient(x, x), 2 * whole.T @ (whole @ whole))
if jax.process_index() == 0:
    # Only this process compiles the program again.
    jax.clear_caches()
check(program(x)[0], whole + 1)
assert multihost_utils.process_allgather(np.array([jax.process_index()]), tiled=True).tolist() == [0, 1]
multihost_utils.sync_global_devices("end")

jaxring = sys.modules["jaxring"]
assert jaxring.counters()["operations"] > 40, jaxring.counters()
text = jaxring.explain()
assert "XLA's own collective" not in text, text
assert "wp_job.py:" in text, text
print("right", len(text.splitlines()), flush=True)
