"""The links of a machine that its devices use: those on the best path of some pair.

Two GPUs that NVLink joins never send by PCIe, so a machine's bound counts no PCIe between them.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from jaxring.topology.fabric import Fabric
from jaxring.topology.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.topology.wiring import Wiring


def usable(wiring: Wiring, ranks: Sequence[int] | None = None, nics: bool = False) -> Wiring:
    """The same machine with the links that lie on a best path between two GPUs, or with `nics` a GPU and a NIC's port.

    Of the GPUs all count, or those that `ranks` names.
    """
    fabric = wiring.fabric
    routes = Routes(fabric)
    chosen = fabric.ranks if ranks is None else [fabric.ranks[rank] for rank in ranks]
    pairs = list(itertools.permutations(chosen, 2))
    if nics:
        pairs += [pair for rank in chosen for nic in wiring.nics for pair in ((rank, nic), (nic, rank))]
    used = {link for pair in pairs if (route := routes.best(*pair)) for link in route.links}
    links = tuple(link for index, link in enumerate(fabric.links) if index in used)
    return dataclasses.replace(wiring, fabric=Fabric(fabric.vertices, links))
