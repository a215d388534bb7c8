"""The groups of a call as XLA's own collectives write them, for people and tools that read lowered programs.

The engine does not read this: what it needs is in the custom call's configuration. XLA drops the attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.dialects import stablehlo as hlo

if TYPE_CHECKING:
    from jaxring.axes import Axes


def replica_groups(collective: str, axes: Axes) -> Any:
    """An attribute: mesh and axes by name where JAX writes this collective so, partition ids otherwise."""
    by_axes = axes.groups is None and collective != "ragged_all_to_all" and getattr(jax.config, "jax_use_rgv3", False)
    if not by_axes:
        ids: Any = axes.partitions().astype(np.int64)
        return ir.DenseIntElementsAttr.get(ids)
    # Inlined, not by symbol: XLA removes the program's meshes before it looks whether attributes still name them.
    mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(str(name), size) for name, size in axes.mesh])
    names = [hlo.AxisRefAttr.get(str(name)) for name in axes.names]
    return hlo.ReplicaGroupMeshAxesAttr.get(mesh, ir.ArrayAttr.get(names))
