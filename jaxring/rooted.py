"""The collectives that have a root: broadcast, reduce, gather, scatter.

Arguments are as in `jaxring.collectives`, and so are the errors that are not named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp

# batching and differentiation are imported for the rules of jax.vmap and jax.grad that they register.
from jaxring.tracing import batching, blocks, checks, differentiation, replicated, wire_dtypes  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import bind, each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import AxisName

Tree = TypeVar("Tree")


def broadcast(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> Tree:
    """Every rank gets the value of rank ``root``.

    Shapes and dtypes are the same on all ranks, and stay. ValueError where ``root`` is no rank of the axis.
    """
    return _rooted("broadcast", x, axis_name, None, root, axis_index_groups, algorithm, protocol, timeout)


def reduce(
    x: Tree,
    axis_name: AxisName,
    op: str = "sum",
    root: int = 0,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """Rank ``root`` gets what `all_reduce` would give; the others get zeros. ``assume_replicated`` as there.

    Shapes and dtypes stay; the sum of bool counts in int32. ValueError where ``root`` is no rank of the axis; TypeError
    where ``op`` is not defined for the dtype.
    """
    groups = axis_index_groups
    return _rooted("reduce", x, axis_name, op, root, groups, algorithm, protocol, timeout, assume_replicated)


def gather(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> Tree:
    """Rank ``root`` gets what `all_gather` would give; the others get zeros of that shape.

    That is all ranks' values stacked on a new dimension ``axis``, of the ranks' number, or with ``tiled`` concatenated
    along dimension ``axis``. Dtypes stay. ValueError where ``root`` is no rank of the axis, or ``axis`` no dimension of
    the result.
    """
    y = _rooted("gather", x, axis_name, None, root, axis_index_groups, algorithm, protocol, timeout)

    def one(leaf: Any) -> Any:
        return blocks.join(leaf, checks.dimension("gather", "axis", axis, leaf.ndim - tiled), tiled)

    return each("gather", one, y)


def scatter(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> Tree:
    """Rank r gets the r-th part of rank ``root``'s value along ``axis``; the others' values do not matter.

    All ranks pass values of one shape and dtype. Dimension ``axis`` has as many entries as ranks and goes away, or with
    ``tiled`` is a multiple of their number and shrinks; ValueError for another size. Dtypes stay. ValueError where
    ``root`` is no rank of the axis, or ``axis`` no dimension of the value.
    """
    axes = resolve("scatter", axis_name, axis_index_groups)

    def parts(leaf: Any) -> Any:
        at = checks.dimension("scatter", "axis", axis, leaf.ndim)
        return blocks.split("scatter", leaf, at, axes.size, tiled)

    y = _rooted(
        "scatter", each("scatter", parts, x), axis_name, None, root, axis_index_groups, algorithm, protocol, timeout
    )
    return each("scatter", lambda leaf: jnp.moveaxis(leaf, 0, axis), y) if tiled else y


def _rooted(
    name: str,
    x: Tree,
    axis_name: AxisName,
    op: str | None,
    root: int,
    groups: Sequence[Sequence[int]] | None,
    algorithm: str | None,
    protocol: str | None,
    timeout: float | None,
    assume_replicated: bool = False,
) -> Tree:
    axes = resolve(name, axis_name, groups)
    options = checks.options(name, axes, op, algorithm, protocol, timeout, call_site())
    if op is not None and not assume_replicated:
        replicated.warn(name, x, axes, op)
    options = options._replace(root=checks.root(name, root, axes))

    def one(leaf: Any) -> Any:
        if op is None:
            wire_dtypes.movable(name, leaf)
        else:
            leaf = checks.reducible(name, leaf, op)
        return bind(name, leaf, axes, options)

    return each(name, one, x)
