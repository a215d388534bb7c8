"""Collectives on whole arrays, for programs without `jax.shard_map`: eager, under plain `jax.jit` and in derivatives.

A rank is a position along the mesh axis ``axis`` (a name or a tuple of names), and its value is its block of the array:
the part that lies there when the array is sharded by ``spec``. ``spec`` is a `jax.sharding.PartitionSpec` in which
``axis`` cuts one dimension, ``P(axis)`` unless given; the operand is brought into that sharding if it has another.
Over axes that ``spec`` names for other dimensions, results stay sharded, and each position along them has a collective
of its own; over axes that it does not name, everything is replicated.

``x`` is an array or a pytree of arrays that share ``spec``. ``mesh`` is a `jax.sharding.Mesh` or `AbstractMesh`, or
None for the one of `jax.set_mesh`; its axes may be Auto or Explicit. ``algorithm``, ``protocol`` and ``timeout`` are
those of `jaxring.all_reduce`. Inside `jax.shard_map` use `jaxring`'s own collectives instead.

Errors at trace time: ValueError for a mesh, axis, spec or shape that does not fit; the rest as in `jaxring`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxring import collectives
from jaxring.tracing import checks
from jaxring.tracing.axes import named, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "permute", "reduce_scatter"]

Tree = TypeVar("Tree")
AnyMesh = Mesh | AbstractMesh | None


class Choice(TypedDict, total=False):
    """What every collective takes besides: None lets the tuner or the settings choose. ``timeout`` in seconds."""

    algorithm: str | None
    protocol: str | None
    timeout: float | None


def all_reduce(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    op: str = "sum",
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """``op`` over the ranks' blocks: their dimension shrinks to one block, which all ranks have."""
    place = _place("all_reduce", x, mesh, axis, spec)
    return _run(place, lambda v: collectives.all_reduce(v, place.axis, op, **choice), place.without, x)


def all_gather(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """The same array, no longer sharded over ``axis``: every rank has all blocks."""
    place = _place("all_gather", x, mesh, axis, spec)

    def gather(v: Any) -> Any:
        return collectives.all_gather(v, place.axis, axis=place.dimension, tiled=True, **choice)

    # JAX types a gathered value as one that varies, and would not take it for replicated.
    return _run(place, gather, place.without, x, check_vma=False)


def reduce_scatter(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    op: str = "sum",
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """``op`` over the ranks' blocks as in `all_reduce`; the result is sharded: rank r has its r-th part.

    The dimension has to be a multiple of the square of the number of ranks.
    """
    place = _place("reduce_scatter", x, mesh, axis, spec)

    def scatter(v: Any) -> Any:
        at = place.dimension
        return collectives.reduce_scatter(v, place.axis, op, scatter_dimension=at, tiled=True, **choice)

    return _run(place, scatter, place.spec, x)


def all_to_all(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    split_axis: int,
    concat_axis: int,
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """Rank j's block becomes the j-th parts along ``split_axis`` of all blocks, joined along ``concat_axis``.

    Sharded like the operand, and of its shape where ``split_axis == concat_axis``.
    """
    place = _place("all_to_all", x, mesh, axis, spec)

    def exchange(v: Any) -> Any:
        return collectives.all_to_all(v, place.axis, split_axis, concat_axis, tiled=True, **choice)

    return _run(place, exchange, place.spec, x)


def permute(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    perm: Sequence[tuple[int, int]],
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """Moves blocks from sources to targets, by (source, target) pairs; ranks that are no target get zeros."""
    place = _place("permute", x, mesh, axis, spec)
    return _run(place, lambda v: collectives.permute(v, place.axis, perm, **choice), place.spec, x)


def broadcast(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    root: int = 0,
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """The block of rank ``root``, which all ranks have."""
    place = _place("broadcast", x, mesh, axis, spec)
    return _run(place, lambda v: collectives.broadcast(v, place.axis, root, **choice), place.without, x)


class _Place(NamedTuple):
    """Where a collective happens. ``dimension`` is cut by ``axis``; ``without`` is ``spec`` with that cut undone."""

    mesh: Mesh | AbstractMesh
    axis: tuple[str, ...]
    spec: PartitionSpec
    dimension: int
    without: PartitionSpec


def _place(what: str, x: Any, mesh: AnyMesh, axis: str | tuple[str, ...], spec: PartitionSpec | None) -> _Place:
    where = f"jaxring.sharded.{what}"
    current = jax.sharding.get_abstract_mesh()
    if current.manual_axes:
        raise ValueError(f"{where}: this is inside jax.shard_map; use jaxring.{what} there, on each rank's value.")
    found = current if mesh is None else mesh
    if not isinstance(found, (Mesh, AbstractMesh)):
        raise TypeError(f"{where}: the mesh must be a jax.sharding.Mesh or AbstractMesh, not {shown(mesh)}.")
    if spec is not None and not isinstance(spec, PartitionSpec):
        raise TypeError(f"{where}: spec must be a jax.sharding.PartitionSpec, not {shown(spec)}.")
    x = jax.tree.map(lambda leaf: checks.array(f"sharded.{what}", leaf), x)
    if found.empty:
        raise ValueError(f"{where}: mesh is None and there is no mesh in scope; pass one, or use jax.set_mesh.")
    names: Any = named(f"sharded.{what}", axis)
    for name in names:
        if name not in found.axis_names:
            raise ValueError(
                f"{where}: the mesh has no axis {name!r}; it has {', '.join(map(repr, found.axis_names))}."
            )
    if spec is None:
        spec = _spec(names)
    entries = _entries(spec)
    at = [i for i, entry in enumerate(entries) if entry[-len(names) :] == names]
    if not names or len(at) != 1:
        raise ValueError(
            f"{where}: spec {spec} does not say which dimension axis {axis!r} cuts: one entry of it must be, or end "
            f"with, {names if len(names) != 1 else repr(names[0])}."
        )
    (dimension,) = at
    for leaf in jax.tree.leaves(x):
        _check_shape(where, jnp.shape(leaf), entries, dict(found.shape))
    entries[dimension] = entries[dimension][: -len(names)]
    return _Place(found, names, spec, dimension, _spec(*entries))


def _check_shape(where: str, shape: tuple[int, ...], entries: list[tuple[str, ...]], sizes: dict[str, int]) -> None:
    if len(shape) < len(entries):
        raise ValueError(f"{where}: an array of shape {shape} has fewer dimensions than spec has entries.")
    for dimension, entry in enumerate(entries):
        blocks = 1
        for name in entry:
            blocks *= sizes[name]
        if shape[dimension] % blocks != 0:
            raise ValueError(
                f"{where}: dimension {dimension} of shape {shape} cannot be cut into {blocks} equal blocks; pad it to "
                f"a multiple of {blocks}."
            )


def _entries(spec: PartitionSpec) -> list[tuple[str, ...]]:
    return [() if e is None else tuple(e) if isinstance(e, tuple) else (e,) for e in spec]


def _spec(*entries: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in entries))  # type: ignore[no-untyped-call]


def _run(
    place: _Place, collective: Callable[[Any], Any], out: PartitionSpec, x: Tree, *, check_vma: bool = True
) -> Tree:
    types = dict(zip(place.mesh.axis_names, place.mesh.axis_types, strict=True))
    explicit = {name for name, kind in types.items() if kind == AxisType.Explicit}
    if explicit:
        # Over explicit axes, shard_map takes only what has its sharding already.
        entries = [tuple(n for n in entry if n in explicit) for entry in _entries(place.spec)]
        sharding = NamedSharding(place.mesh, _spec(*entries))
        x = jax.tree.map(lambda v: jax.sharding.reshard(v, sharding), x)  # type: ignore[no-untyped-call]
    mapped = jax.shard_map(collective, mesh=place.mesh, in_specs=place.spec, out_specs=out, check_vma=check_vma)
    result: Tree = mapped(x)
    return result
