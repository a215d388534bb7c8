"""A network from a file of another's, whichever of the formats it has."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.topology.formats import astra_sim, infragraph
from jaxring.topology.formats.marked import File

if TYPE_CHECKING:
    import pathlib

    from jaxring.topology.fabric import Fabric

SUFFIXES = (".yml", ".yaml", ".json")


@dataclasses.dataclass(frozen=True)
class Network:
    """``title``: what it is. ``groups``: for each rank the number of its machine, or of its group in ASTRA-sim's first
    dimension. ``through_ranks``: ranks pass on what is for others; then a message is sent whole, too, as ASTRA-sim has
    it."""

    title: str
    fabric: Fabric = dataclasses.field(repr=False)
    groups: tuple[int, ...] = dataclasses.field(repr=False)
    through_ranks: bool


def read(path: pathlib.Path) -> Network:
    """Raises ValueError with the file, the line and what is wrong."""
    file = File(path)
    if astra_sim.is_one(file.root):
        fabric, first = astra_sim.read(file)
        groups = tuple(rank // first for rank in range(len(fabric.ranks)))
        return Network(f"the network of {path.name}, as ASTRA-sim describes it", fabric, groups, True)
    if infragraph.is_one(file.root):
        fabric = infragraph.read(file)
        groups = tuple(fabric.vertices[vertex].machine for vertex in fabric.ranks)
        return Network(f"the network of {path.name}, in InfraGraph", fabric, groups, False)
    what = "a network file of ASTRA-sim's (topology, npus_count) nor InfraGraph (devices, instances)"
    raise file.wrong(1, f"it is neither {what}")
