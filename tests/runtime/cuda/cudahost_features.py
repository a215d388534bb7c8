"""What is built on the collectives, on GPUs: each feature once, forward and where it has one backward."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring.optax
from tests.compress import bounds
from tests.moe import mixture
from tests.runtime.cuda.cudahost_engine import RANKS, check, mesh, over


def compressed(n=1000):
    """Every format: the error is within its bound, and all ranks get the same bits."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((RANKS, n)).astype(np.float32)
    total = rows.astype(np.float64).sum(0)
    for name in bounds.NAMES:
        for seed in (None, 3):

            def both(v, name=name, seed=seed):
                y = jaxring.all_reduce(v, "d", compress=name, seed=seed)
                every = jaxring.all_gather(jax.lax.bitcast_convert_type(y, jnp.uint32), "d")
                return y, (every == every[:1]).all()[None]

            run = jax.shard_map(both, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
            y, same = jax.jit(run)(_placed(rows, P("d")))
            assert all(np.asarray(shard.data).all() for shard in same.addressable_shards), name
            stochastic = seed is not None
            slack = sum(bounds.once(name, row, stochastic) for row in rows)
            slack = slack + bounds.once(name, total, stochastic, slack) + 1e-5
            for shard in y.addressable_shards:
                assert (np.abs(np.asarray(shard.data)[0] - total) <= slack).all(), (name, seed)


def repeated(n=257):
    """Exact sums over a dimension and over the ranks, of terms that cancel."""
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((RANKS, n)) * 10.0 ** rng.integers(-20, 20, (RANKS, n))).astype(np.float32)
    exact = np.float32(math.fsum(rows.astype(np.float64).ravel()))
    check(lambda v: jaxring.reproducible_sum(v[0], "d", 0)[None], rows, np.full(RANKS, exact))


def experts():
    """Dispatch and combine, dropless and by capacity, with the gradient by the tokens."""
    case = mixture.case()
    here = mixture.EXPERTS // RANKS

    def layer(x, ids, weights, scale, capacity):
        sent = jaxring.moe.dispatch(x, ids, "d", experts=mixture.EXPERTS, capacity=capacity)
        if capacity is None:
            ends = jnp.cumsum(sent.counts)
            of_row = jnp.searchsorted(ends, jnp.arange(sent.tokens.shape[0]), side="right").clip(0, here - 1)
            answers = sent.tokens * scale[of_row][:, None]
        else:
            answers = sent.tokens * scale[:, None, None]
        return jaxring.moe.combine(answers, sent, weights)

    for capacity in (None, 3):
        expected = mixture.dense(case, capacity)
        run = partial(layer, capacity=capacity)

        def both(*args, run=run):
            return run(*args), jax.grad(lambda x: (run(x, *args[1:]) ** 2).sum())(args[0])

        mapped = jax.shard_map(both, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
        got = jax.jit(mapped)(*(_placed(each, P("d")) for each in case))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            wanted = expected(case.x, case.weights, case.scale)
            slope = jax.grad(lambda x: (expected(x, case.weights, case.scale) ** 2).sum())(case.x)  # noqa: B023
        for arrays in zip(got, (wanted, slope), strict=True):
            _close(*arrays, 1e-4)


def resharded():
    """Arrays between shardings and meshes, by rounds and in a program."""
    x = np.arange(RANKS * 8 * RANKS * 6, dtype=np.float32).reshape(RANKS * 8, RANKS * 6)
    reverse = Mesh(np.array(jax.devices()[::-1]), ("d",))
    given = _placed(x, P("d"))
    for sharding in (NamedSharding(mesh, P(None, "d")), NamedSharding(mesh, P()), NamedSharding(reverse, P("d"))):
        _close(jaxring.reshard(given, sharding), x, 0)
    columns = NamedSharding(mesh, P(None, "d"))
    run = jax.jit(lambda v: jaxring.reshard(v * 2, columns, from_sharding=NamedSharding(mesh, P("d"))))
    _close(run(given), 2 * x, 0)


def multiplied(n=12):
    """Products of gathered rows, and sums of products, in chunks."""
    rng = np.random.default_rng(2)
    rows, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((RANKS * 8, n), (n, 5)))
    parts = [rng.standard_normal((RANKS * 8, n)).astype(np.float32) for _ in range(RANKS)]

    def gathered(v):
        return jaxring.all_gather_matmul(v, w, "d", chunks=4)

    def summed(v):
        return jaxring.matmul_reduce_scatter(v, w, "d", chunks=4)

    with jax.default_matmul_precision("highest"):
        for found in over(gathered, rows).values():
            np.testing.assert_allclose(found, rows @ w, rtol=1e-4, atol=1e-5)
        whole = sum(part @ w for part in parts)
        for start, found in over(summed, np.concatenate(parts)).items():
            np.testing.assert_allclose(found, whole[start : start + len(found)], rtol=1e-4, atol=1e-5)


def trained(steps=6):
    """Data parallel steps: gradients in buckets, compressed with error feedback, and DiLoCo's outer steps."""
    import optax

    rng = np.random.default_rng(3)
    params = {name: rng.standard_normal((24, 24)).astype(np.float32) * 0.2 for name in "abc"}
    x = rng.standard_normal((RANKS * 4, 24)).astype(np.float32)
    aim = x[:, ::-1].copy()

    def loss(params, x, aim):
        y = jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]) @ params["c"]
        return ((y - aim) ** 2).mean()

    with jax.default_matmul_precision("highest"):
        step = jaxring.overlap_gradients(jax.value_and_grad(loss), "d", bucket_bytes=1 << 10)
        run = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P(), check_vma=False)
        value, slopes = jax.jit(run)(params, _placed(x, P("d")), _placed(aim, P("d")))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            wanted, expected = jax.value_and_grad(loss)(params, x, aim)
    np.testing.assert_allclose(value.addressable_data(0), wanted, rtol=1e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope.addressable_data(0), expected[name], rtol=1e-3, atol=1e-6)

    mean = optax.chain(jaxring.optax.compressed_mean("d", "int8"), optax.sgd(0.5))
    outer = jaxring.optax.diloco("d", optax.sgd(0.5), every=2)
    for optimizer in (mean, outer):
        _descends(optimizer, loss, params, x, aim, steps)


def _descends(optimizer, loss, params, x, aim, steps):
    """Training by ``optimizer`` lowers each rank's loss.

    Nothing but the optimizer's collectives is in a step: XLA's CPU backend, which stands for a GPU's stream, begins
    those that do not depend on each other in any order.
    """
    specs = jaxring.optax.state_specs(jax.eval_shape(optimizer.init, params), "d")
    shard_map = partial(jax.shard_map, mesh=mesh, check_vma=False)
    apart = jax.tree.map(lambda p: np.broadcast_to(p, (RANKS, *p.shape)), params)

    def step(params, state, x, aim):
        params = jax.tree.map(lambda p: p[0], params)
        value, slopes = jax.value_and_grad(loss)(params, x, aim)
        updates, state = optimizer.update(slopes, state, params)
        params = jax.tree.map(lambda p, u: (p + u)[None], params, updates)
        return params, state, value[None]

    given = jax.tree.map(lambda p: _placed(p, P("d")), apart)
    batch = _placed(x, P("d")), _placed(aim, P("d"))
    begin = shard_map(lambda p: optimizer.init(jax.tree.map(lambda v: v[0], p)), in_specs=P("d"), out_specs=specs)
    state = jax.jit(begin)(given)
    run = jax.jit(shard_map(step, in_specs=(P("d"), specs, P("d"), P("d")), out_specs=(P("d"), specs, P("d"))))
    losses = []
    for _ in range(steps):
        given, state, value = run(given, state, *batch)
        losses.append(float(value.addressable_data(0)[0]))
    assert losses[-1] < 0.9 * losses[0], losses


def _placed(value, spec):
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda at: value[at])


def _close(array, expected, error):
    for shard in array.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), np.asarray(expected)[shard.index], rtol=error, atol=error)
