"""Which addresses of this host to listen on."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import pathlib
import socket
import struct
from typing import NamedTuple

from jaxring.errors import JoinError

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_IFF_UP = 0x1


class Address(NamedTuple):
    """An address of this host and the interface that has it."""

    interface: str
    address: str

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def choose(spec: str, coordinator: str) -> list[Address]:
    """The addresses to listen on, in the order of the interfaces; never empty.

    `spec` is JAXRING_SOCKET_IFNAME: a comma list of prefixes of interface names, or of names after a leading ``=``; a
    leading ``^`` excludes them instead (loopback is then excluded too, because other hosts cannot reach it).
    Without it, the address that the route to `coordinator` ("host:port") starts from; loopback where that is local.
    Raises JoinError where nothing matches, listing what there is.
    """
    have = addresses()
    if spec:
        chosen = [entry for entry in have if _selected(spec, entry)]
        if not chosen:
            listed = ", ".join(f"{entry.interface} {entry.address}" for entry in have) or "none"
            raise JoinError(f"No interface matches JAXRING_SOCKET_IFNAME={spec}. Those up with an address: {listed}.")
        return chosen
    return _default(coordinator, have)


def _selected(spec: str, entry: Address) -> bool:
    exclude = spec.startswith("^")
    exact = spec.lstrip("^").startswith("=")
    names = [name for name in spec.lstrip("^").lstrip("=").split(",") if name]
    hit = any(entry.interface == name if exact else entry.interface.startswith(name) for name in names)
    return not hit and not entry.loopback if exclude else hit


def _default(coordinator: str, have: list[Address]) -> list[Address]:
    loopback = [entry for entry in have if entry.loopback][:1] or [Address("lo", "127.0.0.1")]
    host = coordinator.rpartition(":")[0].strip("[]")
    if host in ("", "localhost"):
        return loopback
    literal = False
    with contextlib.suppress(ValueError):
        literal = True if ipaddress.ip_address(host).is_loopback else literal
    if literal:
        return loopback
    source = _route_source(host)
    if source and not ipaddress.ip_address(source).is_loopback:
        # An address that is not its interface's first one is not in the list, and is as good.
        return [next((entry for entry in have if entry.address == source), Address("route", source))]
    # A host's own name often resolves to a loopback address on that host only, so listening there would hide it from
    # the other hosts. Every other address can be reached by some host.
    return [entry for entry in have if not entry.loopback] or loopback


def _route_source(host: str) -> str:
    """The local address from which packets to `host` leave, "" where there is no route."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, target in found:
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def addresses() -> list[Address]:
    """The addresses of all interfaces that are up: IPv4 before IPv6, no IPv6 link-local ones.

    Link-local addresses need the dialling host's own scope id, so a peer cannot use them as published.
    """
    six = _ipv6()
    found: list[Address] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                flags = struct.unpack_from("<H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
            except OSError:
                continue  # gone since it was listed
            if not flags & _IFF_UP:
                continue
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                found.append(Address(name, socket.inet_ntoa(reply[20:24])))
            found.extend(Address(name, address) for address in six.get(name, ()))
    return found


def _ipv6() -> dict[str, list[str]]:
    try:
        lines = pathlib.Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if not address.is_link_local:
            found.setdefault(name, []).append(str(address))
    return found
