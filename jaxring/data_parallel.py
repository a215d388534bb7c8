"""Data-parallel gradients: each rank computes the loss of its part of the data; all get the gradient of the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import jax

from jaxring import _compat, collectives
from jaxring.tracing import checks
from jaxring.tracing.axes import resolve
from jaxring.tracing.casting import pcast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.tracing.axes import AxisName
    from jaxring.typing import Protocol

__all__ = ["value_and_grad"]


def value_and_grad(
    loss: Callable[..., Any],
    axis_name: AxisName,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: Literal["mean", "sum"] = "mean",
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad` of a loss that is averaged over the ranks of ``axis_name``, inside `jax.shard_map`.

    The result is the same with ``check_vma`` True and False, under `jax.pmap` and over axes of `jax.vmap`, and whether
    or not ``params`` were cast before. All is reduced in one call for as much as JAXRING_FUSION_BYTES allows.

    Args:
        loss: ``loss(params, batch, ...)``: a scalar, a rank's own loss of its own part of the data, without a reduction
            over ``axis_name``.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        argnums: By which positional arguments to differentiate: pytrees of parameters that are the same on all ranks.
        has_aux: Whether ``loss`` returns ``(value, aux)``.
        op: "mean" over the ranks, or "sum".
        algorithm: "ring", "tree", "halving_doubling", "oneshot", "deterministic" and others, or the name of one of your
            own (`jaxring.register_algorithm`). None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        A function of the arguments of ``loss`` that gives ``(value, gradients)``, or with ``has_aux`` ``((value, aux),
        gradients)``. ``value`` and ``gradients`` are the mean or sum over the ranks, the same bits on all; ``aux`` is a
        rank's own.

    Raises:
        ValueError: For an ``op`` other than "mean" and "sum"; at trace time for a loss that is known to be the same on
            all ranks, and for ``argnums`` that the call does not have.
        NameError: From its function, at trace time: ``axis_name`` is not bound there.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            step = jaxring.data_parallel.value_and_grad(loss, "data")
            value, gradients = step(params, batch)
    """
    what = "data_parallel.value_and_grad"
    if op not in ("mean", "sum"):
        raise ValueError(f"jaxring.{what}: op={op!r} is not served; use 'mean' or 'sum'.")
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    choice: dict[str, Any] = {"algorithm": algorithm, "protocol": protocol, "timeout": timeout}

    def step(*args: Any, **kwargs: Any) -> Any:
        axes = resolve(what, axis_name)
        for number in chosen:
            checks.dimension(what, "argnums", number, len(args))
        mine = list(args)
        for number in chosen:
            # A copy of each rank's own: the gradient by it is of the rank's own loss, and the sum is left to us.
            mine[number] = pcast(args[number], axis_name, **choice)
        value, gradients = jax.value_and_grad(loss, argnums, has_aux=has_aux)(*mine, **kwargs)
        value, aux = value if has_aux else (value, None)
        if _compat.tracks_varying() and not _compat.varying(value) >= set(axes.mesh_names):
            raise ValueError(
                f"jaxring.{what}: the loss is the same on all ranks of axis {axes} by its type, so it has been reduced "
                "already. Return the rank's own loss, without all_reduce, psum or pmean of it."
            )
        value, gradients = collectives.all_reduce((value, gradients), axis_name, op, **choice)
        return ((value, aux) if has_aux else value), gradients

    return step
