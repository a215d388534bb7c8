"""This host's RDMA ports and their GIDs, read by pyverbs, libibverbs or from /sys."""

from __future__ import annotations

import importlib
import pathlib
import re
import socket
from typing import Any

import jaxring._native as _native
from jaxring.topology import detect, rdma
from jaxring.topology.rdma import Gid, Port

# What the numbers of the verbs interface stand for.
_STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active deferred"}
_GID_TYPES = {0: "IB", 1: "IB/RoCE v1", 2: "RoCE v2"}
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_LANE_MBPS = {1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000}
_ETHERNET, _IWARP = 2, 1


def ports(sys_root: str = "/sys") -> tuple[list[Port], str]:
    """The ports and their source: pyverbs where it is installed, else libibverbs, else /sys, which has no MTU."""
    try:
        return from_pyverbs(importlib.import_module("pyverbs.device"), sys_root), "pyverbs"
    except ImportError:
        pass
    except Exception as error:  # pyverbs raises its own kinds: where the kernel has no RDMA, for one
        if not (pathlib.Path(sys_root) / "class/infiniband").exists():
            return [], f"pyverbs: {error}"
    found, why = rdma.ports(_native)
    if found:
        return found, "libibverbs"
    return from_sys(sys_root), f"/sys; {why}"


def from_pyverbs(verbs: Any, sys_root: str = "/sys") -> list[Port]:
    """Every port as pyverbs.device describes it."""
    found = []
    for device in verbs.get_device_list():
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        folder = pathlib.Path(sys_root) / "class/infiniband" / name
        with verbs.Context(name=name) as context:
            count = context.query_device().phys_port_cnt
            table = context.query_gid_table(count * 256)
            for number in range(1, count + 1):
                port = context.query_port(number)
                gids = tuple(
                    Gid(e.gid_index, _GID_TYPES.get(e.gid_type, "?"), e.gid_str, _interface(e.ndev_ifindex))
                    for e in table
                    if e.port_num == number
                )
                layer = "RoCE" if port.link_layer == _ETHERNET else "InfiniBand"
                found.append(
                    Port(
                        device=name,
                        port=number,
                        state=_STATES.get(port.state, "?"),
                        layer="iWARP" if device.transport_type == _IWARP else layer,
                        mtu=128 << port.active_mtu,
                        mbps=_LANE_MBPS.get(port.active_speed, 0) * _LANES.get(port.active_width, 0),
                        lid=port.lid,
                        interface=next((gid.interface for gid in gids if gid.interface), ""),
                        pci=str((folder / "device").resolve()),
                        gids=gids,
                    )
                )
    return found


def from_sys(sys_root: str = "/sys") -> list[Port]:
    """The ports as /sys describes them; `mtu` is 0, because /sys does not have it."""
    found = []
    for net in detect.detect(sys_root).nets:
        folder = pathlib.Path(sys_root) / "class/infiniband" / net.name
        at = folder / "ports" / str(net.port)
        if not at.exists():
            continue
        gids = tuple(_gids(at))
        layer = {"Ethernet": "RoCE"}.get(detect.line(at / "link_layer"), "InfiniBand")
        found.append(
            Port(
                device=net.name,
                port=net.port,
                state=detect.line(at / "state").partition(": ")[2].lower(),
                layer="iWARP" if _is_rnic(folder) else layer,
                mtu=0,
                mbps=net.mbps,
                lid=detect.number(at / "lid"),
                interface=next((gid.interface for gid in gids if gid.interface), ""),
                pci=str((folder / "device").resolve()),
                gids=gids,
            )
        )
    return found


def _is_rnic(folder: pathlib.Path) -> bool:
    return detect.line(folder / "node_type").startswith("4:")


def _gids(port: pathlib.Path) -> list[Gid]:
    found = []
    numbers = [int(path.name) for path in (port / "gids").glob("*") if re.fullmatch("[0-9]+", path.name)]
    for index in sorted(numbers):
        address = detect.line(port / "gids" / str(index))
        if not address.strip("0:"):
            continue  # an empty entry
        kind = detect.line(port / "gid_attrs/types" / str(index))
        found.append(Gid(index, kind, address, detect.line(port / "gid_attrs/ndevs" / str(index))))
    return found


def _interface(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""
