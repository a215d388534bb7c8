"""`jaxring.reshard` inside `jax.jit`: one exchange of cells among the devices of a mesh, as a part of the program.

A device cuts its block into cells, and an all-to-all of uneven parts brings each cell to the devices that need it. What
goes where is known while the program is traced, so no sizes are exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxring.resharding import cells
from jaxring.resharding.primitive import over, register, reshard_p
from jaxring.tracing import checks, oracle, wire_dtypes
from jaxring.tracing.axes import call_site, called_at, resolve, shown
from jaxring.tracing.p2p_primitives import ragged_p
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.resharding.cells import Axes, Exchange

_WHAT = "jaxring.reshard"


def reshard(x: Any, source: Any, target: Any, timeout: float | None) -> Any:
    """``x``, a traced array, from sharding ``source`` to ``target``; None: the one that its type says.

    TypeError inside `jax.shard_map`, for a sharding that is no NamedSharding or is not known, and for a dtype that
    collectives do not have; ValueError for shardings over two meshes, for one that does not divide the shape, and for
    one that leaves a dimension unconstrained.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        raise TypeError(
            f"{_WHAT}: this is inside jax.shard_map, where arrays are a device's own; call it on whole arrays, outside."
        )
    if source is None:
        source = _typed(x)
    for sharding in (source, target):
        if not isinstance(sharding, NamedSharding):
            raise TypeError(f"{_WHAT}: inside jax.jit a sharding must be a jax.sharding.NamedSharding, not {sharding}.")
    meshes = (source.mesh, target.mesh)
    concrete = [mesh for mesh in meshes if isinstance(mesh, Mesh)]  # an abstract one has no devices yet
    if tuple(meshes[0].shape.items()) != tuple(meshes[1].shape.items()) or (
        len(concrete) == 2 and not np.array_equal(concrete[0].devices, concrete[1].devices)
    ):
        raise ValueError(
            f"{_WHAT}: inside jax.jit both shardings must be over one mesh, not {meshes[0]} and {meshes[1]}; call it "
            "outside of jax.jit for another mesh."
        )
    mesh = concrete[0] if concrete else target.mesh
    wire_dtypes.movable(_WHAT.removeprefix("jaxring."), x)
    for sharding in (source, target):
        _axes(sharding.spec, x.ndim, mesh.axis_names)  # ValueError where a dimension is left to the partitioner
        sharding.shard_shape(x.shape)  # ValueError where it does not divide the shape
    x, back = wire_dtypes.on_the_wire(x)
    options = {"mesh": mesh, "source": source.spec, "target": target.spec, "timeout": timeout, "site": call_site()}
    return back(reshard_p.bind(x, **options))  # type: ignore[no-untyped-call]


def _typed(x: Any) -> Any:
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or any(kind != AxisType.Explicit for kind in sharding.mesh.axis_types):
        raise TypeError(
            f"{_WHAT}: inside jax.jit the sharding of {shown(x)} is not known, because XLA's partitioner chooses it; "
            "pass from_sharding, or use a mesh whose axes are explicit."
        )
    return sharding


def _mapped(x: Any, *, mesh: Any, source: Any, target: Any, timeout: float | None, site: str) -> Any:
    entries = [_axes(spec, x.ndim, mesh.axis_names) for spec in (source, target)]
    known = isinstance(mesh, Mesh)  # an abstract mesh has no devices yet
    processes = tuple(device.process_index for device in mesh.devices.flat) if known else (0,) * mesh.size
    table = cells.exchange(*entries, tuple(mesh.shape.values()), processes)
    specs: list[Any] = [PartitionSpec(*spec) for spec in (source, target)]  # type: ignore[no-untyped-call]

    def mine(block: Any) -> Any:
        with called_at(site):
            return _exchanged(block, table, mesh.axis_names, timeout)

    with over(mesh):
        return jax.shard_map(mine, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)(x)


def _axes(spec: Any, dimensions: int, names: Sequence[Any]) -> Axes:
    """For each dimension, the numbers of the axes that shard it."""
    found: list[tuple[int, ...]] = []
    for entry in spec:
        each = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        if any(name not in names for name in each):
            raise ValueError(f"{_WHAT}: {spec} must say of each dimension which axes shard it.")
        found.append(tuple(names.index(name) for name in each))
    return (*found, *[()] * (dimensions - len(found)))


def _exchanged(block: Any, table: Exchange, names: Sequence[Any], timeout: float | None) -> Any:
    axes = resolve("reshard", tuple(names))
    options = checks.options("ragged_all_to_all", axes, None, None, None, timeout, call_site())
    rank = jax.lax.axis_index(tuple(names))
    cell = tuple(size // count for size, count in zip(block.shape, table.held, strict=True))
    rows = _cut(block, table.held, cell)[jnp.asarray(table.sent_from)[rank]]
    if table.moves:
        sizes, comes = table.sizes, table.sizes.T
        vectors = [np.cumsum(sizes, 1) - sizes, sizes, np.cumsum(comes, 1) - comes, comes, comes]
        into = jnp.zeros((table.lies_at.shape[1], *cell), block.dtype)
        operands = [rows, into, *(jnp.asarray(each.astype(np.int32))[rank] for each in vectors)]
        oracle.leave_out(Unchecked.RESHARD, "reshard", options.site)
        rows = ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]
    return _put_together(rows[jnp.asarray(table.lies_at)[rank]], table.wanted, cell)


def _cut(block: Any, counts: tuple[int, ...], cell: tuple[int, ...]) -> Any:
    """(cells, *cell): the cells of a block, so many along each dimension."""
    pairs = [size for pair in zip(counts, cell, strict=True) for size in pair]
    order = [*range(0, len(pairs), 2), *range(1, len(pairs), 2)]
    return block.reshape(pairs).transpose(order).reshape(int(np.prod(counts, dtype=np.int64)), *cell)


def _put_together(rows: Any, counts: tuple[int, ...], cell: tuple[int, ...]) -> Any:
    """The block of such cells."""
    dimensions = len(cell)
    order = [i // 2 + dimensions * (i % 2) for i in range(2 * dimensions)]
    whole = rows.reshape(*counts, *cell).transpose(order)
    return whole.reshape(tuple(count * size for count, size in zip(counts, cell, strict=True)))


register(_mapped)
