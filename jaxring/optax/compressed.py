"""The mean of gradients in a compressed format, with error feedback. See docs/concepts/compression.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from jaxring.compress.call_arguments import compressible, wanted
from jaxring.compress.formats import BLOCK
from jaxring.tracing import checks, replicated
from jaxring.tracing.axes import call_site, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.compress.formats import Format
    from jaxring.tracing.axes import AxisName
    from jaxring.typing import CompressedFormat, Protocol

_WHAT = "optax.compressed_mean"
# Leaves of up to so many elements travel together: by itself each would cost two collectives and its own arithmetic.
_SMALL = 1 << 14


class CompressedMeanState(NamedTuple):
    """``step``: updates so far, int32. ``residual``: a float32 array (1, *shape) for each parameter, a rank's own.

    ``residual`` is what compression has left out so far; None without error feedback.
    """

    step: jax.Array
    residual: Any


def compressed_mean(
    axis_name: AxisName,
    compress: CompressedFormat = "int8",
    *,
    error_feedback: bool = True,
    seed: int | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> optax.GradientTransformation:
    """The mean of the gradients over the ranks of ``axis_name``, sent in the format ``compress``.

    A rank's update takes its own gradients, of any shape, and returns the mean, with the same bits on all ranks and in
    the gradients' dtypes. Call it inside `jax.shard_map`, ``init``, too; the state crosses the border of
    `jax.shard_map` by `state_specs`.

    Args:
        axis_name: Name of a mesh axis, or a tuple of names; the rank is the row-major index over them.
        compress: "int8", "fp8_e4m3", "bf16" or "int4", for gradients of float32, bfloat16 and float16.
        error_feedback: Whether a rank adds to its gradients what compression has left out of the earlier ones, so that
            over time nothing is lost. That is kept in the state, in float32, and differs from rank to rank.
        seed: An integer: rounds at random, by other random bits in each step. None rounds to nearest.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        An `optax.GradientTransformation`.

    Raises:
        ValueError: From its update, at trace time: the format or an option is not served.
        TypeError: From its update, at trace time: gradients of another dtype.
        NameError: From its update, at trace time: ``axis_name`` is not bound there.

    Examples:
        As the first of a chain:

            optimizer = optax.chain(jaxring.optax.compressed_mean("data", "int8"), optax.adamw(3e-3))
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
        leaves, tree = jax.tree.flatten(updates)
        for leaf in leaves:
            compressible(_WHAT, leaf)  # as it is given: what follows is in float32
        wholes = leaves
        if state.residual is not None:
            residuals = jax.tree.leaves(state.residual)
            wholes = [g.astype(jnp.float32) + r[0] for g, r in zip(leaves, residuals, strict=True)]
        packed, unpack = _packed(wholes, compressor.form)
        if state.residual is None:
            means = unpack([compressor.bind(value, options) for value in packed])
            left = None
        else:
            both = [compressor.bind_with_error(value, options) for value in packed]
            means = unpack([mean for mean, _ in both])
            left = jax.tree.unflatten(tree, [error[None] for error in unpack([error for _, error in both])])
        means = [mean.astype(g.dtype) for mean, g in zip(means, leaves, strict=True)]
        return jax.tree.unflatten(tree, means), CompressedMeanState(step, left)

    return optax.GradientTransformation(init, update)


def _mixed(seed: int, step: jax.Array) -> jax.Array:
    """A seed for each step: of seeds that are close, those of different steps are not the same."""
    mixed: jax.Array = jnp.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF) + step.astype(jnp.uint32)
    return mixed


def _packed(leaves: Sequence[Any], form: Format) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """The leaves with the small ones in one float32 vector, and the function that takes results apart again.

    Each leaf begins a block of its own, so that no leaf's scale depends on another. Leaves that blocks would make
    longer stay as they are.
    """
    small: list[int] = []
    others: list[int] = []
    for i, x in enumerate(leaves):
        shorter = form.row_bytes(x.size) < x.size * x.dtype.itemsize
        (small if x.size <= _SMALL and shorter else others).append(i)
    parts = [jnp.ravel(leaves[i]).astype(jnp.float32) for i in small]
    vectors = [jnp.concatenate([jnp.pad(part, (0, -part.size % BLOCK)) for part in parts])] if small else []

    def unpack(results: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = dict(zip(others, results, strict=False))
        at = 0
        for i in small:
            size = leaves[i].size
            found[i] = jnp.reshape(results[-1][at : at + size], leaves[i].shape)
            at += size + -size % BLOCK
        return [found[i] for i in range(len(leaves))]

    return [*(leaves[i] for i in others), *vectors], unpack
