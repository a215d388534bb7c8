"""Clusters whose network a file describes link by link: its ranks are all there are, and messages cost what the links
say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.simulate.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxring.simulate.links.network import Network

# Messages are whole, and cost what their links do.
WHOLE = Model(tile_bytes=1 << 40)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A network as `Cluster` offers one. ``domains``: for each rank the number of the ranks' group that address each
    other's memory."""

    name: str
    title: str
    network: Network = dataclasses.field(repr=False)
    domains: tuple[int, ...] = dataclasses.field(repr=False)
    models: Mapping[str, Model]
    kind: str = "gpu"
    channels: int = 1
    leaf: int = 1
    multicast: float = 0.0
    multicast_us: float = 0.0
    multicast_channels: int = 0

    @property
    def ranks(self) -> int:
        """All ranks, which count as one host."""
        return len(self.domains)

    def placement(self, hosts: int) -> tuple[int, ...]:
        """The memory domain of each rank. Raises ValueError for several hosts, which the file does not describe."""
        if hosts != 1:
            raise ValueError(f"{self.name} describes all of its {self.ranks} ranks; --nodes is for clusters by name")
        return self.domains

    def machines(self, hosts: int) -> list[int]:
        """The machine of each rank: its memory domain."""
        return list(self.placement(hosts))

    def build(self, hosts: int, protocol: str) -> Network:
        """The network; the protocol changes nothing."""
        del hosts, protocol
        return self.network
