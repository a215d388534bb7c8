"""The collectives, each beside the same in `jax.lax`; where lax has none, made of lax's all_gather and psum.

A case is a pair of functions of (a rank's value, the axes), and the shape of that value for ``N`` ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

import jaxring

if TYPE_CHECKING:
    from collections.abc import Callable

N = 4
ROOT = 2
RING = [(i, (i + 1) % N) for i in range(N)]
PARTIAL = [(0, 3), (2, 0), (3, 3 - 1)]


class Case(NamedTuple):
    """``ours`` and ``theirs`` of (value, axes).

    ``ties``: the data has equal values and zeros, for min, max and prod. ``vmapped`` is what to compare with over a
    vmapped axis, where lax's own is not right.
    """

    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any], Any]
    shape: tuple[int, ...] = (N, 3)
    ties: bool = False
    vmapped: Callable[[Any, Any], Any] | None = None


def same(v: Any, axes: Any) -> Any:
    """All ranks' values, with the type of a psum: one value."""
    mine = jnp.arange(N).reshape(-1, *[1] * v.ndim) == lax.axis_index(axes)
    return lax.psum(jnp.where(mine, v, 0.0), axes)


def every(v: Any, axes: Any) -> Any:
    """All ranks' values, with the type of an all_gather: each rank has its own."""
    return lax.all_gather(v, axes)


def at_root(y: Any, axes: Any) -> Any:
    return jnp.where(lax.axis_index(axes) == ROOT, y, 0.0)


def mine(y: Any, axes: Any, dimension: int = 0) -> Any:
    return lax.dynamic_index_in_dim(y, lax.axis_index(axes), dimension, keepdims=False)


LOCAL = {"sum": jnp.sum, "mean": jnp.mean, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}

CASES = {
    "all_reduce sum": Case(lambda v, a: jaxring.all_reduce(v, a), lambda v, a: lax.psum(v, a)),
    "all_reduce mean": Case(lambda v, a: jaxring.all_reduce(v, a, "mean"), lambda v, a: lax.pmean(v, a)),
    "all_gather": Case(lambda v, a: jaxring.all_gather(v, a, axis=1), lambda v, a: lax.all_gather(v, a, axis=1)),
    "all_gather tiled": Case(
        lambda v, a: jaxring.all_gather(v, a, axis=1, tiled=True), lambda v, a: lax.all_gather(v, a, axis=1, tiled=True)
    ),
    # psum_scatter without tiled has no vmap in lax (0.10 to 0.11).
    "reduce_scatter": Case(
        lambda v, a: jaxring.reduce_scatter(v, a), lambda v, a: lax.psum_scatter(v, a, tiled=True)[0]
    ),
    "reduce_scatter tiled": Case(
        lambda v, a: jaxring.reduce_scatter(v, a, scatter_dimension=1, tiled=True),
        lambda v, a: lax.psum_scatter(v, a, scatter_dimension=1, tiled=True),
        (2, 2 * N),
    ),
    "reduce_scatter mean": Case(
        lambda v, a: jaxring.reduce_scatter(v, a, "mean"), lambda v, a: lax.psum_scatter(v, a, tiled=True)[0] / N
    ),
    "all_to_all": Case(
        lambda v, a: jaxring.all_to_all(v, a, 1, 1, tiled=True),
        lambda v, a: lax.all_to_all(v, a, 1, 1, tiled=True),
        (3, 2 * N),
        vmapped=lambda v, a: mine(every(v, a).reshape(N, 3, N, 2), a, 2).transpose(1, 0, 2).reshape(3, 2 * N),
    ),
    # With different dimensions, lax's all_to_all has wrong shapes in some derivatives (0.10 to 0.11).
    "all_to_all stacked": Case(
        lambda v, a: jaxring.all_to_all(v, a, 0, 1), lambda v, a: jnp.moveaxis(mine(every(v, a), a, 1), 0, 1)
    ),
    "all_to_all tiled": Case(
        lambda v, a: jaxring.all_to_all(v, a, 1, 0, tiled=True),
        lambda v, a: mine(every(v, a), a, 2).reshape(3 * N, 1),
        (3, N),
    ),
    "permute": Case(lambda v, a: jaxring.permute(v, a, RING), lambda v, a: lax.ppermute(v, a, RING)),
    "permute some": Case(
        lambda v, a: jaxring.permute(v, a, PARTIAL),
        lambda v, a: mine(jnp.stack([every(v, a)[2], 0 * v, every(v, a)[3], every(v, a)[0]]), a),
    ),
    "broadcast": Case(lambda v, a: jaxring.broadcast(v, a, ROOT), lambda v, a: same(v, a)[ROOT]),
    "gather": Case(lambda v, a: jaxring.gather(v, a, ROOT), lambda v, a: at_root(every(v, a), a)),
    "scatter": Case(lambda v, a: jaxring.scatter(v, a, ROOT), lambda v, a: mine(every(v, a)[ROOT], a)),
}
for _op in ("max", "min", "prod"):
    CASES[f"all_reduce {_op}"] = Case(
        lambda v, a, op=_op: jaxring.all_reduce(v, a, op),
        lambda v, a, op=_op: LOCAL[op](same(v, a), axis=0),
        ties=True,
    )
    CASES[f"reduce_scatter {_op}"] = Case(
        lambda v, a, op=_op: jaxring.reduce_scatter(v, a, op),
        lambda v, a, op=_op: mine(LOCAL[op](every(v, a), axis=0), a),
        ties=True,
    )
for _op in ("sum", "mean", "max", "prod"):
    CASES[f"reduce {_op}"] = Case(
        lambda v, a, op=_op: jaxring.reduce(v, a, op, ROOT),
        lambda v, a, op=_op: at_root(LOCAL[op](every(v, a), axis=0), a),
        ties=_op in ("max", "prod"),
    )


def data(case: Case, *lead: int, seed: int = 0) -> np.ndarray:
    """Values with ``lead`` in front of a rank's shape, of the size of 1."""
    rng = np.random.default_rng(seed)
    shape = (*lead, *case.shape)
    return rng.integers(-1, 2, shape).astype(np.float64) if case.ties else rng.normal(size=shape)


def mesh(*names: str) -> Mesh:
    """N devices in one row, or in two."""
    grid = np.array(jax.devices()[:N])
    return Mesh(grid if len(names) == 1 else grid.reshape(2, N // 2), names)


def quick(f: Callable[..., Any]) -> Any:
    """`jax.jit` that spends no time on fast code."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": "0"})


def close(ours: Any, theirs: Any, what: str = "") -> None:
    """All leaves equal but for rounding, and in shape and dtype."""
    ours, theirs = jax.tree.map(np.asarray, (ours, theirs))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), what
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        where = f"{what} {jax.tree_util.keystr(path)}"
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=where)
