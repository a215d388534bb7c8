"""The cast from replicated to varying, whose transpose is jaxring's all-reduce.

With ``check_vma=True`` JAX types values by the mesh axes over which they vary, and a value that is the same on all
ranks must be cast before it is combined with one that is not. A gradient passes that cast backwards, where the ranks'
parts of it are summed. `jax.lax.pcast` sums with XLA's collective, this one with jaxring's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxring import _compat
from jaxring.tracing import checks
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.primitives import define

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options
    from jaxring.typing import Protocol

Tree = TypeVar("Tree")

cast_p = Primitive("jaxring_pcast")


def pcast(
    x: Tree,
    axis_name: AxisName,
    *,
    to: Literal["varying"] = "varying",
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Tree:
    """``x`` typed as varying over ``axis_name``; jaxring's all-reduce sums its gradient over these axes.

    Use it for a value that is the same on all ranks and is combined with values that are not, such as parameters with
    data. Without it JAX casts the value on its own, and the gradient's sum over the ranks is XLA's all-reduce. Axes
    over which a leaf varies already are skipped; with ``check_vma=False`` and over axes of `jax.vmap` nothing is cast.

    Args:
        x: An array or a pytree of arrays of any dtype that can be summed, where it is differentiated.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        to: "varying": `jax.lax.pcast` has the other casts.
        algorithm: "ring", "tree", "halving_doubling", "oneshot", "deterministic" and others, of the backward
            all-reduce, or the name of one of your own (`jaxring.register_algorithm`). None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        ``x`` with another type: shapes, dtypes and values stay.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array.
        ValueError: At trace time: ``to`` is another cast, or an option does not serve the backward all-reduce.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            w = jaxring.pcast(w, "data")
            loss = ((w * x - y) ** 2).mean()
    """
    if to != "varying":
        raise ValueError(f"jaxring.pcast: to={to!r} is not served; use to='varying', or jax.lax.pcast for other casts.")
    axes = resolve("pcast", axis_name)
    options = checks.options("pcast", axes, None, algorithm, protocol, timeout, call_site())
    result: Tree = jax.tree.map(lambda leaf: cast_varying(checks.array("pcast", leaf), axes, options), x)
    return result


def cast_varying(x: Any, axes: Axes, options: Options) -> Any:
    """``x`` typed as varying over the mesh axes of ``axes``, where JAX tracks that. Collectives need such operands."""
    if not _compat.tracks_varying():
        return x
    known = _compat.varying(x)
    missing = [name for name in axes.mesh_names if name not in known]
    return cast_p.bind(x, axes=axes.over(missing), options=options) if missing else x  # type: ignore[no-untyped-call]


def cast_alike(operands: Sequence[Any], axes: Axes, options: Options) -> list[Any]:
    """The operands of one collective, typed as varying over its mesh axes and over all that any of them varies over."""
    if not _compat.tracks_varying():
        return list(operands)
    known = frozenset(axes.mesh_names).union(*map(_compat.varying, operands))
    everywhere = axes.over([name for name, _ in axes.mesh if name in known])
    return [cast_varying(x, everywhere, options) for x in operands]


def _abstract(x: Any, *, axes: Axes, options: Options) -> Any:
    del options
    return _compat.with_varying(x, x.shape, frozenset(x.manual_axis_type.varying) | frozenset(axes.names))


def _batch(args: tuple[Any], dims: tuple[int], *, axes: Axes, options: Options) -> tuple[Any, int]:
    return cast_p.bind(*args, axes=axes, options=options), dims[0]  # type: ignore[no-untyped-call]


define(cast_p, _abstract)
mlir.register_lowering(cast_p, lambda _ctx, x, **_params: [x])
batching.primitive_batchers[cast_p] = _batch
