"""The measured order of hosts: rings visit them in it. `jaxring tune --ranks` writes it, and processes read it here.

It is an element of a topology file, so JAXRING_TOPO_FILE can name it, with or without a machine in the same file:

    <system version="1"><order source="..."><host name="a" us="21" mbps="9400"/><host name="b" .../></order></system>

Without that, each process reads the file in its user's cache.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from jaxring.errors import SettingsError
from jaxring.settings import settings
from jaxring.topology import cache, elements

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_HOSTS = 1 << 16
# The digest of those that have no order.
NONE = "0"


@dataclasses.dataclass(frozen=True)
class Hop:
    """A host, and the way to the next one in the ring: ``us`` of latency, and Mbit/s; 0 where they are not known."""

    host: str
    us: float = 0.0
    mbps: int = 0


@dataclasses.dataclass(frozen=True)
class Order:
    """``hops``: hosts by their names, each once. ``source``: who made it. ``file``: where it was read."""

    hops: tuple[Hop, ...]
    source: str = ""
    file: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(hop.host for hop in self.hops)

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal orders."""
        return hashlib.blake2b("\0".join(self.hosts).encode(), digest_size=8).hexdigest()

    def text(self) -> str:
        """As XML that `parse` reads back."""
        system = ET.Element("system", version="1")
        order = ET.SubElement(system, "order", source=self.source)
        for hop in self.hops:
            ET.SubElement(order, "host", name=hop.host, us=f"{hop.us:g}", mbps=str(hop.mbps))
        ET.indent(system)
        return ET.tostring(system, encoding="unicode") + "\n"


def parse(data: bytes, file: str = "") -> Order | None:
    """The order in a topology file, None where it has none. Raises ValueError with line and reason."""
    found = [child for child in elements.parse(data, "system").children() if child.tag == "order"]
    if not found:
        return None
    if len(found) > 1:
        raise found[1].error(f"there is an <order> on line {found[0].line} already")
    lines: dict[str, int] = {}
    hops = []
    for host in found[0].children():
        name = host.get("name", "")
        if host.tag != "host" or not name or not name.isprintable() or len(name) > 255:
            raise host.error("an <order> holds elements <host name=...> with names of hosts")
        if name in lines:
            raise host.error(f"host {name} is on line {lines[name]} already")
        lines[name] = host.line
        us, mbps = host.real("us", 0.0), host.number("mbps", 0)
        if us < 0 or mbps < 0:
            raise host.error(f"us and mbps of host {name} cannot be negative")
        hops.append(Hop(name, us, mbps))
    if not 1 <= len(hops) <= _MOST_HOSTS:
        raise found[0].error(f"an <order> of {len(hops)} hosts, where 1 to {_MOST_HOSTS} are possible")
    return Order(tuple(hops), found[0].get("source", ""), file)


def file_of(kind: str) -> pathlib.Path:
    """Where the order of hosts of a kind of machine lies in the cache."""
    return cache.folder("orders") / f"{kind}.xml"


def save(order: Order) -> pathlib.Path:
    """Has new processes on this kind of machine use the order. Returns its file. Raises OSError."""
    return cache.save(file_of(cache.machine_kind()), order.text())


def current() -> Order | None:
    """This process's order: that of JAXRING_TOPO_FILE where it has one, else the cache's, else None. Read once.

    Raises SettingsError for a JAXRING_TOPO_FILE that cannot be used; a file of the cache that cannot is warned of.
    """
    return _current(settings().topo_file)


@functools.cache
def _current(topo_file: str) -> Order | None:
    if topo_file:
        try:
            found = _read(pathlib.Path(topo_file))
        except (OSError, ValueError) as error:
            raise SettingsError(f"The topology file {topo_file} cannot be used: {error}.") from None
        if found is not None:
            return found
    without = "Rings visit hosts in the order of ranks; `jaxring tune --ranks` writes the file anew."
    return cache.load(file_of(cache.machine_kind()), _read, without)


def _read(path: pathlib.Path) -> Order | None:
    with path.open("rb") as file:
        return parse(file.read(elements.MAX_BYTES + 1), str(path))


def of_domains(order: Order, hosts: Sequence[tuple[str, str]]) -> tuple[tuple[int, ...], str]:
    """The order of memory domains whose (name, identity) of the host is given; or (), and why it does not apply.

    Domains of one host stay together, in their own order.
    """
    place = {name: at for at, name in enumerate(order.hosts)}
    identities = dict(hosts)
    if missing := sorted({name for name, _ in hosts} - place.keys()):
        return (), f"host {missing[0]} is not in {order.file or 'the measured order'}"
    if len(identities) < len(set(hosts)):
        twice = next(name for name, identity in hosts if identities[name] != identity)
        return (), f"several hosts are called {twice}"
    return tuple(sorted(range(len(hosts)), key=lambda domain: (place[hosts[domain][0]], domain))), ""
