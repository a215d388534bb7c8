"""The identity of a process: what it publishes for its peers, and the number that tells hosts apart."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import ipaddress
import operator
import os
import pathlib
import secrets
import socket
from typing import TYPE_CHECKING, Any

from jaxring.plan.profile_file import COMMODITY
from jaxring.topology.order import NONE as NO_ORDER
from jaxring.world import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PROCESSES = 1 << 20
MAX_ADDRESSES = 64
MAX_INFO_BYTES = 16384
MAX_RDMA_PORTS = 64
MAX_PROCESSORS = 8192
UNKNOWN_KERNEL = "0"


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """What a process of the job publishes for its peers.

    `token` is random and new at each start, so that a restarted process is not taken for its predecessor.
    `pid` is valid inside the pid namespace with the inode `pid_namespace`. `addresses` are (interface, address, port).
    `rdma_ports` are the kind and name of each of its active RDMA ports (see `jaxring.topology.rdma`), which its
    channels take in this order. `processors` is the bit mask, in hexadecimal digits, of the processors that it may run
    on, `kernel` the digest of its kernel's boot id. `profile` is the digest of the profile by which it prices schedules
    (see `jaxring.topology.calibration`), `order` that of its order of hosts (see `jaxring.topology.order`).
    """

    index: int
    pid: int
    pid_namespace: int
    hostname: str
    host_id: str
    token: str
    addresses: tuple[tuple[str, str, int], ...]
    rdma_ports: tuple[tuple[str, str], ...]
    processors: str
    kernel: str
    profile: str
    order: str
    settings: str
    version: str

    def __str__(self) -> str:
        return f"process {self.index} (pid {self.pid} on {self.hostname})"

    @property
    def rdma(self) -> tuple[str, ...]:
        """The kinds of its RDMA ports, each once, in their order."""
        return tuple(dict.fromkeys(kind for kind, _ in self.rdma_ports))

    def shares_processors(self, other: ProcessInfo) -> bool:
        """Whether both may run on the same processor, also where they are in containers that count as hosts."""
        if self.kernel == UNKNOWN_KERNEL or self.kernel != other.kernel:
            return False
        return int(self.processors, 16) & int(other.processors, 16) != 0

    def interfaces(self) -> int:
        """How many interfaces it listens on."""
        return len({name for name, _, _ in self.addresses})

    def to_json(self) -> bytes:
        """At most MAX_INFO_BYTES bytes that `from_json` reads back."""
        return wire.encode(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> ProcessInfo:
        """Parse what a peer published. Raises ValueError that names the first wrong field."""
        raw = wire.decode(data, MAX_INFO_BYTES)
        names = {field.name for field in dataclasses.fields(cls)}
        if raw.keys() != names:
            raise ValueError(f"fields differ: {', '.join(map(repr, sorted(raw.keys() ^ names)))[:200]}")
        addresses = raw["addresses"]
        if type(addresses) is not list or not 1 <= len(addresses) <= MAX_ADDRESSES:
            raise ValueError(f"addresses is not a list of 1 to {MAX_ADDRESSES}")
        ports = raw["rdma_ports"]
        if type(ports) is not list or len(ports) > MAX_RDMA_PORTS:
            raise ValueError(f"rdma_ports is not a list of at most {MAX_RDMA_PORTS}")
        return cls(
            index=wire.integer(raw["index"], "index", 0, MAX_PROCESSES - 1),
            pid=wire.integer(raw["pid"], "pid", 1, 1 << 31),
            pid_namespace=wire.integer(raw["pid_namespace"], "pid_namespace", 0, 1 << 63),
            hostname=wire.text(raw["hostname"], "hostname", 255),
            host_id=wire.text(raw["host_id"], "host_id", 64),
            token=wire.text(raw["token"], "token", 64),
            addresses=tuple(_address(entry) for entry in addresses),
            rdma_ports=tuple(_port(entry) for entry in ports),
            processors=_hexadecimal(raw["processors"], "processors", MAX_PROCESSORS // 4),
            kernel=_hexadecimal(raw["kernel"], "kernel", 16),
            profile=_hexadecimal(raw["profile"], "profile", 16),
            order=_hexadecimal(raw["order"], "order", 16),
            settings=wire.text(raw["settings"], "settings", 2048),
            version=wire.text(raw["version"], "version", 64),
        )


def _hexadecimal(value: Any, name: str, longest: int) -> str:
    digits = wire.text(value, name, longest)
    if not digits or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{name} is not made of hexadecimal digits")
    return digits


def processors(infos: Iterable[ProcessInfo]) -> int:
    """How many processors these processes of one host may run on together."""
    return functools.reduce(operator.or_, (int(info.processors, 16) for info in infos)).bit_count()


def _address(entry: Any) -> tuple[str, str, int]:
    if type(entry) is not list or len(entry) != 3:
        raise ValueError("an address is not [interface, address, port]")
    address = wire.text(entry[1], "address", 64)
    ipaddress.ip_address(address)  # with a name, the sender could choose what this process looks up
    return wire.text(entry[0], "interface", 64), address, wire.integer(entry[2], "port", 1, 65535)


def _port(entry: Any) -> tuple[str, str]:
    if type(entry) is not list or len(entry) != 2:
        raise ValueError("an RDMA port is not [kind, name]")
    return wire.text(entry[0], "kind", 64), wire.text(entry[1], "name", 80)


def host_id(override: str = "") -> str:
    """16 hex digits that are equal for processes that can share memory: a hash of JAXRING_HOSTID or of kernel facts.

    Hostname and boot id name the machine. As in NCCL, the device of /dev/shm and the network namespace distinguish
    containers that share a kernel and a hostname; each such namespace is a host of its own.
    """
    parts = ["override", override] if override else ["found", socket.gethostname(), *_kernel_names()]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _boot_id() -> str:
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _kernel() -> str:
    boot = _boot_id()
    return hashlib.sha256(boot.encode()).hexdigest()[:16] if boot else UNKNOWN_KERNEL


def _kernel_names() -> list[str]:
    try:
        shm = str(pathlib.Path("/dev/shm").stat().st_dev)
    except OSError:
        shm = ""
    return [_boot_id(), shm, str(namespace("net"))]


def namespace(kind: str) -> int:
    """Inode of this process's namespace of that kind ("net", "pid"), 0 where the kernel does not show it."""
    try:
        return pathlib.Path(f"/proc/self/ns/{kind}").stat().st_ino
    except OSError:
        return 0


@functools.cache
def version() -> str:
    """The version of the installed package; a source tree that is not installed has none."""
    try:
        return importlib.metadata.version("jaxring")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def describe_self(
    index: int,
    addresses: list[tuple[str, str, int]],
    settings: str,
    hostid_override: str = "",
    rdma_ports: tuple[tuple[str, str], ...] = (),
    profile: str = COMMODITY.digest,
    order: str = NO_ORDER,
) -> ProcessInfo:
    """This process's own ProcessInfo with a new token."""
    return ProcessInfo(
        index=index,
        pid=os.getpid(),
        pid_namespace=namespace("pid"),
        hostname=socket.gethostname()[:255],
        host_id=host_id(hostid_override),
        token=secrets.token_hex(16),
        addresses=tuple(addresses),
        rdma_ports=rdma_ports[:MAX_RDMA_PORTS],
        processors=f"{sum(1 << cpu for cpu in os.sched_getaffinity(0) if cpu < MAX_PROCESSORS):x}",
        kernel=_kernel(),
        profile=profile,
        order=order,
        settings=settings,
        version=version(),
    )
