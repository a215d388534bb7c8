"""Optax transformations that reduce gradients over ranks. `import jaxring` does not import this; it needs optax.

    import jaxring.optax

    optimizer = optax.chain(jaxring.optax.compressed_mean("data", "int8"), optax.adamw(3e-3))

docs/concepts/compression.md has the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from jaxring.compress.calls import wanted
from jaxring.tracing import checks, replicated
from jaxring.tracing.axes import call_site, named, resolve

if TYPE_CHECKING:
    from jaxring.tracing.axes import AxisName

__all__ = ["CompressedMeanState", "compressed_mean", "state_specs"]

_WHAT = "optax.compressed_mean"


class CompressedMeanState(NamedTuple):
    """``step``: updates so far, int32. ``residual``: a float32 array (1, *shape) for each parameter, a rank's own.

    ``residual`` is what compression has left out so far; None without error feedback.
    """

    step: jax.Array
    residual: Any


def compressed_mean(
    axis_name: AxisName,
    compress: str = "int8",
    *,
    error_feedback: bool = True,
    seed: int | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> optax.GradientTransformation:
    """The mean of the gradients over the ranks of ``axis_name``, sent in the format ``compress``.

    A rank's update takes its own gradients, of any shape, and returns the mean, with the same bits on all ranks and in
    the gradients' dtypes. Call it inside `jax.shard_map`. With ``error_feedback`` a rank adds to its gradients what
    compression has left out of the earlier ones, so that over time nothing is lost; that is kept in the state, in
    float32, and differs from rank to rank. So the state crosses the border of `jax.shard_map` by `state_specs`, and
    ``init`` is called inside, too. ``seed`` rounds at random, by other random bits in each step. ``protocol`` and
    ``timeout`` are those of `jaxring.all_reduce`.

    ValueError for a format that is not served, TypeError for gradients that cannot be compressed.
    """

    def init(params: Any) -> CompressedMeanState:
        zeros = jax.tree.map(lambda p: jnp.zeros((1, *jnp.shape(p)), jnp.float32), params)
        return CompressedMeanState(jnp.zeros((), jnp.int32), zeros if error_feedback else None)

    def update(updates: Any, state: CompressedMeanState, params: Any = None) -> tuple[Any, CompressedMeanState]:
        del params
        axes = resolve(_WHAT, axis_name)
        options = checks.options("all_reduce", axes, "mean", None, protocol, timeout, call_site())
        now = None if seed is None else _mixed(seed, state.step)
        compressor = wanted("all_reduce", compress, now, axes, "mean", None)
        if compressor is None:
            raise ValueError(f"jaxring.{_WHAT}: compress=None leaves nothing to do; use jaxring.all_reduce.")
        replicated.warn(_WHAT, updates, axes, "mean")
        step = state.step + 1
        if state.residual is None:
            mean = jax.tree.map(lambda g: compressor.bind(g, options), updates)
            return mean, CompressedMeanState(step, None)
        leaves, tree = jax.tree.flatten(updates)
        means, residuals = [], []
        for gradient, residual in zip(leaves, jax.tree.leaves(state.residual), strict=True):
            whole = gradient.astype(jnp.float32) + residual[0]
            mean, left = compressor.bind_with_error(whole, options)
            means.append(mean.astype(gradient.dtype))
            residuals.append(left[None])
        return jax.tree.unflatten(tree, means), CompressedMeanState(step, jax.tree.unflatten(tree, residuals))

    return optax.GradientTransformation(init, update)


def _mixed(seed: int, step: jax.Array) -> jax.Array:
    """A seed for each step: of seeds that are close, those of different steps are not the same."""
    mixed: jax.Array = jnp.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF) + step.astype(jnp.uint32)
    return mixed


def state_specs(state: Any, axis_name: AxisName) -> Any:
    """The `jax.sharding.PartitionSpec` of each array of an optimiser's state, for `jax.shard_map`.

    ``state`` is a state, or its shapes as of `jax.eval_shape`, that may hold a `CompressedMeanState` anywhere.
    Residuals have ranks on their first axis; everything else is the same on all ranks.
    """
    whole: Any = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    by_rank: Any = jax.sharding.PartitionSpec(named("optax.state_specs", axis_name))  # type: ignore[no-untyped-call]

    def of(node: Any) -> Any:
        if isinstance(node, CompressedMeanState):
            return CompressedMeanState(whole, jax.tree.map(lambda _: by_rank, node.residual))
        return whole

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, CompressedMeanState))
