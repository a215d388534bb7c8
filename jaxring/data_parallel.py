"""Data-parallel gradients: each rank computes the loss of its part of the data; all get the gradient of the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxring import _compat, collectives
from jaxring.tracing import checks
from jaxring.tracing.axes import resolve
from jaxring.tracing.casting import pcast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.tracing.axes import AxisName

__all__ = ["value_and_grad"]


def value_and_grad(
    loss: Callable[..., Any],
    axis_name: AxisName,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: str = "mean",
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad` of a loss that is averaged over the ranks of ``axis_name``, inside `jax.shard_map`.

    ``loss(params, batch, ...)`` is a rank's own loss, of its own part of the data, without a reduction over
    ``axis_name``. The function that is returned takes the same arguments and gives ``(value, gradients)``, or with
    ``has_aux`` ``((value, aux), gradients)``. ``value`` and ``gradients`` are the mean over the ranks (with
    ``op="sum"`` the sum), the same bits on all; ``aux`` is a rank's own. ``argnums`` says by which arguments to
    differentiate: pytrees of parameters that are the same on all ranks.

        step = jaxring.data_parallel.value_and_grad(loss, "data")
        value, gradients = step(params, batch)

    The result is the same with ``check_vma`` True and False, under `jax.pmap` and over axes of `jax.vmap`, and whether
    or not ``params`` were cast before. All is reduced in one call for as much as JAXRING_FUSION_BYTES allows.
    ``algorithm``, ``protocol`` and ``timeout`` are those of `jaxring.all_reduce`.

    ValueError for an op other than "mean" and "sum", and for a loss that is known to be the same on all ranks.
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
