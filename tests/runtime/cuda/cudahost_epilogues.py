"""What reductions with an epilogue give on GPUs: the bits of the same formula in NumPy's float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import epilogues
from tests.runtime.cuda.cudahost_engine import RANKS, check, mesh

SIZE = 700  # of a block, which ends within a pack


def whole(seed, *shape):
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def values(**options):
    x = whole(0, RANKS, SIZE)
    total = np.broadcast_to(x.sum(0), x.shape)
    scale = epilogues.scale(0.3)
    check(lambda v: jaxring.all_reduce(v, "d", epilogue=scale, **options), x, total * np.float32(0.3))
    check(lambda v: jaxring.all_reduce(v, "d", "mean", epilogue=scale, **options), x, total / RANKS * np.float32(0.3))
    after = scale.then(epilogues.clip(-2, 3)).then(epilogues.cast(jnp.bfloat16))
    clipped = np.clip(total * np.float32(0.3), -2, 3)
    check(lambda v: jaxring.all_reduce(v, "d", epilogue=after, **options), x, clipped.astype(ml_dtypes.bfloat16))
    half = x.astype(ml_dtypes.bfloat16)
    wide = epilogues.cast(jnp.float32)
    check(lambda v: jaxring.all_reduce(v, "d", epilogue=wide, **options), half, total)
    blocks = whole(1, RANKS, RANKS, SIZE)
    small = epilogues.cast(jnp.float8_e5m2)
    got = lambda v: jaxring.reduce_scatter(v[0], "d", epilogue=small, **options)[None].astype(jnp.float32)  # noqa: E731
    check(got, blocks, blocks.sum(0).astype(ml_dtypes.float8_e5m2).astype(np.float32))


def adam_of(p, g, w, mu, nu):
    mu = p[3] * g + p[2] * mu
    nu = p[5] * (g * g) + p[4] * nu
    update = (mu * p[6]) / (np.sqrt(nu * p[7]) + p[8])
    return w - p[0] * (update + p[1] * w), mu, nu


def shards(function, donate, *arrays):
    """Results of this process's ranks, by rank; ``arrays`` are (ranks, ...)."""
    run = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False), donate_argnums=donate
    )
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    # Copies of XLA's own, which can be donated.
    given = [jax.make_array_from_callback(x.shape, sharding, lambda at, x=x: x[at]) for x in arrays]
    own = jax.jit(lambda *each: [x + 0 for x in each])(*given)
    results = run(*own)
    return [{s.index[0].start: np.asarray(s.data)[0] for s in each.addressable_shards} for each in results]


def steps(donate, **options):
    """``donate``: the new parameters and states take the memory of the old ones."""
    gradients = whole(2, RANKS, RANKS, SIZE)
    random = np.random.default_rng(3)
    w, mu, nu = (random.standard_normal((RANKS, SIZE)).astype(np.float32) for _ in range(3))
    nu = nu * nu

    def make(w, mu, nu):
        return epilogues.adam(w, mu, nu, 3, 1e-2, b1=0.8, weight_decay=0.1)

    def call(g, w, mu, nu):
        new = jaxring.reduce_scatter(g[0], "d", "mean", epilogue=make(w[0], mu[0], nu[0]), **options)
        return [each[None] for each in new]

    p = [np.float32(each) for each in make(w, mu, nu).parameters]
    want = adam_of(p, gradients.sum(0) / np.float32(RANKS), w, mu, nu)
    found = shards(call, (1, 2, 3) if donate else (), gradients, w, mu, nu)
    for name, got, expected in zip(("params", "mu", "nu"), found, want, strict=True):
        for rank, row in got.items():
            np.testing.assert_array_equal(row, expected[rank], err_msg=f"{name} of rank {rank}, {options}")

    def momentum(g, w, trace):
        step = epilogues.sgd(w[0], 0.5, momentum=0.9, trace=trace[0])
        (new, trace), more = jaxring.reduce_scatter_start(g[0], "d", epilogue=step, **options).done(g + 1)
        return new[None], trace[None], more

    new, trace, more = shards(momentum, (1, 2) if donate else (), gradients, w, mu)
    want = gradients.sum(0) + np.float32(0.9) * mu
    for rank, row in trace.items():
        np.testing.assert_array_equal(row, want[rank])
        np.testing.assert_array_equal(new[rank], w[rank] - np.float32(0.5) * want[rank])
        np.testing.assert_array_equal(more[rank], gradients[rank] + 1)


def started(starts):
    """Beside other work, as other calls are. ``starts()`` counts the collectives that went there so far."""
    x, before = whole(4, RANKS, SIZE), starts()

    def call(v):
        y, z = jaxring.all_reduce_start(v, "d", epilogue=epilogues.scale(2)).done(v + 1)
        return y * z

    check(call, x, 2 * x.sum(0) * (x + 1))
    assert starts() == before + len(jax.local_devices()), (starts(), before)


def everything(starts):
    values()
    before = starts()
    steps(donate=True)
    steps(donate=False)
    assert starts() == before, "calls with states are done where they were started"
    started(starts)
    for protocol in ("simple", "ll"):
        values(algorithm="ring", protocol=protocol)
        steps(donate=True, algorithm="ring", protocol=protocol)
    assert "all_reduce(sum) with epilogue scale, clip, cast to bfloat16, of float32" in jaxring.explain()
