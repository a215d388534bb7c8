"""Chooses the RDMA ports to use, and one address of each.

The native engine lists the ports; the choice is made here. A `Rail` is a port with one address. Two processes can be
linked by rails of one kind: InfiniBand with InfiniBand, RoCE with RoCE of the same version and address family, iWARP
with iWARP. Channel c uses rail c of those, so that several rails share the load, and equal rails are connected where
the processes of two hosts are near the same ones.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from typing import TYPE_CHECKING, Protocol

from jaxring.errors import JoinError
from jaxring.topology import detect, interfaces, paths
from jaxring.topology.routes import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring._native import RdmaPort
    from jaxring.settings import Settings

IWARP = "iWARP"  # as /sys and links name it

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_LINK_LOCAL = ipaddress.IPv6Network("fe80::/10")


@dataclasses.dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table, with the kernel's name for its type and the interface behind it."""

    index: int
    type: str
    address: str
    interface: str

    @property
    def family(self) -> str:
        """ "IPv4", "IPv6" or "link-local"."""
        address = ipaddress.IPv6Address(self.address)
        return "IPv4" if address in _MAPPED else "link-local" if address in _LINK_LOCAL else "IPv6"


@dataclasses.dataclass(frozen=True)
class Port:
    """A port of an RDMA device. `layer` is "InfiniBand", "RoCE" or "iWARP"; `mtu` is in bytes."""

    device: str
    port: int
    state: str
    layer: str
    mtu: int
    mbps: int
    lid: int
    interface: str
    pci: str
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        return self.state == "active"

    def __str__(self) -> str:
        return f"{self.device} port {self.port} ({self.layer}, {self.state})"


class Verbs(Protocol):
    """The native engine's functions for this host's RDMA devices."""

    def verbs_ports(self) -> tuple[list[RdmaPort], str]:
        """This host's RDMA ports, and what is wrong, or ""."""


@dataclasses.dataclass(frozen=True)
class Rail:
    """A port and the address by which it is used: a GID, an IP address (iWARP), or neither (InfiniBand's LID)."""

    device: str
    port: int
    kind: str
    gid_index: int = -1
    address: str = ""

    @property
    def name(self) -> str:
        """The port as JAXRING_IB_HCA names it."""
        return f"{self.device}:{self.port}"


def ports(native: Verbs) -> tuple[list[Port], str]:
    """This host's RDMA ports, and what is wrong where there is none or one cannot be opened."""
    listed, why = native.verbs_ports()
    names = [field.name for field in dataclasses.fields(Port) if field.name != "gids"]
    found = []
    for one in listed:
        gids = tuple(Gid(gid.index, gid.type, gid.address, gid.interface) for gid in one.gids)
        found.append(Port(**{name: getattr(one, name) for name in names}, gids=gids))
    return found, why


def rails(native: Verbs, settings: Settings, gpus: Sequence[str] = ()) -> list[Rail]:
    """The rails of this process, none where the settings rule RDMA out: nearest first, then by device.

    Distance counts from the GPUs with those bus ids, or from the process's CPUs where there are none. It is taken from
    JAXRING_TOPO_FILE or from this machine.

    Raises JoinError where RDMA is asked for by JAXRING_NET, JAXRING_IB_HCA or JAXRING_IB_GID_INDEX and is not there.
    """
    if settings.net not in ("", "ib"):
        return []
    have, why = ports(native)
    wanted = [port for port in have if selected(settings.ib_hca, port)]
    fit = [(port, rail) for port in wanted if port.active and (rail := _rail(port, settings.ib_gid_index))]
    if len(fit) > 1:
        machine, cpus = detect.machine(settings), os.sched_getaffinity(0)

        def distance(port: Port) -> int:
            nic = detect.busid(port.pci)
            levels = [paths.to_gpu(machine, nic, gpu) for gpu in gpus] or [paths.to_cpus(machine, nic, cpus)]
            return min(map(LEVELS.index, levels))

        # Sorting keeps the order of equals.
        fit.sort(key=lambda each: distance(each[0]))
    chosen = [rail for _, rail in fit]
    if not chosen and (settings.net == "ib" or settings.ib_hca or settings.ib_gid_index >= 0):
        listed = ", ".join(map(str, have)) or f"none; {why}"
        asked = ", ".join(
            f"JAXRING_{name}={value}"
            for name, value, default in (
                ("NET", settings.net.upper(), ""),
                ("IB_HCA", settings.ib_hca, ""),
                ("IB_GID_INDEX", settings.ib_gid_index, -1),
            )
            if value != default
        )
        raise JoinError(f"No active RDMA port serves {asked}. There are: {listed}. `rdma link` shows their state.")
    return chosen


def selected(spec: str, port: Port) -> bool:
    """Whether JAXRING_IB_HCA names the port: comma list of name prefixes, or of names after a leading ``=``.

    Either may be followed by ``:port``; a leading ``^`` excludes instead.
    """
    if not spec:
        return True
    exclude = spec.startswith("^")
    exact = spec.lstrip("^").startswith("=")
    hit = False
    for entry in filter(None, spec.lstrip("^").lstrip("=").split(",")):
        name, _, number = entry.partition(":")
        same = port.device == name if exact else port.device.startswith(name)
        hit |= same and number in ("", str(port.port))
    return hit != exclude


def _rail(port: Port, gid_index: int) -> Rail | None:
    if port.layer == IWARP:
        address = next((a.address for a in interfaces.addresses() if a.interface == port.interface), "")
        return Rail(port.device, port.port, IWARP, address=address) if address else None
    if port.layer == "InfiniBand" and gid_index < 0:
        return Rail(port.device, port.port, "InfiniBand")
    gid = _gid(port.gids, gid_index)
    if gid is None:
        return None
    kind = f"{gid.type} {gid.family}" if port.layer == "RoCE" else "InfiniBand by GID"
    return Rail(port.device, port.port, kind, gid.index)


def _gid(gids: Sequence[Gid], index: int) -> Gid | None:
    """The GID of that index, or the best: RoCE v2 before v1, IPv4 before IPv6, link-local last."""
    if index >= 0:
        return next((gid for gid in gids if gid.index == index), None)
    families = ("IPv4", "IPv6", "link-local")
    return min(gids, key=lambda gid: (gid.type != "RoCE v2", families.index(gid.family), gid.index), default=None)


def common(own: Sequence[str], theirs: Sequence[str]) -> str:
    """The kind by which two processes are linked, the same seen from both; "" where there is none."""
    return min(set(own) & set(theirs), default="")
