"""Collectives on whole arrays, for programs without `jax.shard_map`: eager, under plain `jax.jit` and in derivatives.

A rank is a position along the mesh axis ``axis`` (a name or a tuple of names). Its value is its block of the array: the
part at that position when the array is sharded by ``spec``. ``spec`` is a `jax.sharding.PartitionSpec` in which
``axis`` cuts one dimension, by default ``P(axis)``. An operand with another sharding is resharded. Over axes that
``spec`` names for other dimensions, results stay sharded and each position along them has its own collective. Over axes
that it does not name, operands and results are replicated.

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

from jaxring import collectives, rooted
from jaxring.tracing import checks
from jaxring.tracing.axes import named, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.typing import Op, Protocol

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "permute", "reduce_scatter"]

Tree = TypeVar("Tree")
AnyMesh = Mesh | AbstractMesh | None


class Choice(TypedDict, total=False):
    """Options of every collective. None lets the tuner or the settings choose. ``timeout`` is in seconds."""

    algorithm: str | None
    protocol: Protocol | None
    timeout: float | None


def all_reduce(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    op: Op = "sum",
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """Reduces the ranks' blocks by ``op``.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.all_reduce`; one with another
            sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.all_reduce`.

    Returns:
        One block, replicated over ``axis``: the dimension that ``axis`` cuts is as long as a block.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            total = jaxring.sharded.all_reduce(x, mesh, "data")  # [n * a] to [a]
    """
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
    """Replicates the array over ``axis``.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.all_gather`; one with another
            sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.all_gather`.

    Returns:
        The array with its shape and values, all blocks of which every rank has.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            whole = jaxring.sharded.all_gather(x, mesh, "data")
    """
    place = _place("all_gather", x, mesh, axis, spec)

    def gather(v: Any) -> Any:
        return collectives.all_gather(v, place.axis, axis=place.dimension, tiled=True, **choice)

    # JAX types a gathered value as varying over the axis, so with check_vma it would reject a replicated output.
    return _run(place, gather, place.without, x, check_vma=False)


def reduce_scatter(
    x: Tree,
    mesh: AnyMesh,
    axis: str | tuple[str, ...],
    op: Op = "sum",
    *,
    spec: PartitionSpec | None = None,
    **choice: Unpack[Choice],
) -> Tree:
    """Reduces the ranks' blocks by ``op``, and leaves each rank its part of the result.

    The dimension must be a multiple of the square of the number of ranks.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.reduce_scatter`; one with
            another sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.reduce_scatter`.

    Returns:
        One block, sharded by ``spec``, of which rank r has the r-th part.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            shard = jaxring.sharded.reduce_scatter(x, mesh, "data", "mean")  # [n * a] to [a]
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
    """Rank j's new block is the j-th parts of all blocks along ``split_axis``, concatenated along ``concat_axis``.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.all_to_all`; one with another
            sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        split_axis: The dimension along which blocks are split, a multiple of the number of ranks.
        concat_axis: The dimension along which the parts are concatenated.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.all_to_all`.

    Returns:
        The array, sharded like the operand, and with its shape if ``split_axis == concat_axis``.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            y = jaxring.sharded.all_to_all(x, mesh, "data", 0, 0)
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
    """Moves blocks by (source, target) pairs of ranks.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.permute`; one with another
            sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        perm: Pairs (source, target) of ranks. A rank is at most once a source and once a target.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.permute`.

    Returns:
        The array, sharded like the operand; zeros in the blocks of ranks that are no target.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            y = jaxring.sharded.permute(x, mesh, "data", [(0, 1), (1, 0)])
    """
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
    """The block of rank ``root``, for all.

    Args:
        x: An array or a pytree of arrays that share ``spec``, of the dtypes of `jaxring.broadcast`; one with another
            sharding is resharded. Each dimension that ``spec`` cuts is a multiple of the number of its blocks.
        mesh: A `jax.sharding.Mesh` or `AbstractMesh`; None: that of `jax.set_mesh`.
        axis: The mesh axis whose positions are the ranks, or a tuple of axes.
        root: The rank whose block it is.
        spec: How the operand is cut into blocks: a `jax.sharding.PartitionSpec` in which ``axis`` cuts one dimension.
            None: ``P(axis)``.
        **choice: ``algorithm``, ``protocol`` and ``timeout`` (seconds), as of `jaxring.broadcast`.

    Returns:
        One block, replicated over ``axis``.

    Raises:
        TypeError: At trace time: an argument is of another type, or a dtype is not served.
        ValueError: At trace time: ``mesh``, ``axis``, ``spec``, a shape or an option does not fit; or the call is
            inside `jax.shard_map`.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        On arrays that are sharded over a mesh with an axis "data":

            first = jaxring.sharded.broadcast(x, mesh, "data", root=0)
    """
    place = _place("broadcast", x, mesh, axis, spec)
    return _run(place, lambda v: rooted.broadcast(v, place.axis, root, **choice), place.without, x)


class _Place(NamedTuple):
    """Where a collective runs. ``axis`` cuts ``dimension``; ``without`` is ``spec`` without that cut."""

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
        # With explicit axes shard_map accepts only operands that already have its sharding.
        entries = [tuple(n for n in entry if n in explicit) for entry in _entries(place.spec)]
        sharding = NamedSharding(place.mesh, _spec(*entries))
        x = jax.tree.map(lambda v: jax.sharding.reshard(v, sharding), x)  # type: ignore[no-untyped-call]
    mapped = jax.shard_map(collective, mesh=place.mesh, in_specs=place.spec, out_specs=out, check_vma=check_vma)
    result: Tree = mapped(x)
    return result
