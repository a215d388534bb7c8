"""The groups of a call as XLA's own collectives write them, for people and tools that read lowered programs.

The engine does not read this attribute, and XLA drops it: the engine's input is in the custom call's configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes


def replica_groups(collective: str, axes: Axes, module: Any) -> Any:
    """An attribute: mesh and axes by name where JAX writes this collective so, partition ids otherwise.

    Inside a dictionary: XLA removes the program's meshes before it looks whether attributes still name them, and it
    does not look into dictionaries.
    """
    groups: Any
    by_axes = axes.groups is None and collective != "ragged_all_to_all" and _jax_names_axes()
    if by_axes:
        names = [hlo.AxisRefAttr.get(str(name)) for name in axes.names]
        groups = hlo.ReplicaGroupMeshAxesAttr.get(_mesh_symbol(axes, module), ir.ArrayAttr.get(names))
    else:
        ids: Any = axes.partitions().astype(np.int64)
        groups = ir.DenseIntElementsAttr.get(ids)
    return ir.DictAttr.get({"replica_groups": groups})


def _jax_names_axes() -> bool:
    return bool(getattr(jax.config, "jax_use_rgv3", False) and getattr(jax.config, "jax_use_shardy_partitioner", True))


def _mesh_symbol(axes: Axes, module: Any) -> Any:
    """The name of the program's mesh with these axes, which is made if need be: JAX will find and share it."""
    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(str(name), size) for name, size in axes.mesh])
    taken: set[str] = set()
    for operation in module.body.operations:
        if operation.operation.name == "sdy.mesh":
            name = ir.StringAttr(operation.attributes["sym_name"]).value
            if operation.attributes["mesh"] == mesh:
                return ir.FlatSymbolRefAttr.get(name)
            taken.add(name)
    name = "mesh" if "mesh" not in taken else f"mesh_{len(taken) - 1}"
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
        sdy.MeshOp(name, mesh)
    return ir.FlatSymbolRefAttr.get(name)
