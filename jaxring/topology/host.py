"""A host's resources for processes that move data: limits, memory, interfaces, GPUs' access to NICs, containers."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import re
import resource
import socket

from jaxring.topology import detect, interfaces

_CAP_IPC_LOCK = 14


@dataclasses.dataclass(frozen=True)
class Interface:
    """A network interface. ``mbps`` is 0 where the driver does not report it."""

    name: str
    state: str
    mtu: int
    mbps: int
    addresses: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Host:
    """``memlock`` and ``shm_bytes`` are bytes, -1 without a limit. ``peermem`` and ``dmabuf`` are about NVIDIA GPUs.

    ``resolves`` says that this host knows an address of its own name.
    """

    name: str
    resolves: bool
    kernel: str
    cpus: int
    memlock: int
    ipc_lock: bool
    shm_bytes: int
    huge_pages: str
    congestion: str
    socket_bytes: int
    kubernetes: bool
    container: bool
    gpus: bool
    peermem: bool
    dmabuf: str
    interfaces: tuple[Interface, ...]


def describe(root: str = "/") -> Host:
    """This host, read from /proc and /sys (under `root`)."""
    at = pathlib.Path(root)
    proc, sys = at / "proc", at / "sys"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    gpus = (proc / "driver/nvidia/version").exists()
    return Host(
        name=socket.gethostname(),
        resolves=_resolves(socket.gethostname()),
        kernel=platform.release(),
        cpus=len(os.sched_getaffinity(0)),
        memlock=-1 if soft == resource.RLIM_INFINITY else soft,
        ipc_lock=_capable(proc, _CAP_IPC_LOCK),
        shm_bytes=_filesystem_bytes(at / "dev/shm"),
        huge_pages=_chosen(detect.line(sys / "kernel/mm/transparent_hugepage/enabled")),
        congestion=detect.line(proc / "sys/net/ipv4/tcp_congestion_control"),
        socket_bytes=_last(detect.line(proc / "sys/net/ipv4/tcp_wmem")),
        kubernetes="KUBERNETES_SERVICE_HOST" in os.environ or (at / "var/run/secrets/kubernetes.io").exists(),
        container=(at / ".dockerenv").exists() or (at / "run/.containerenv").exists(),
        gpus=gpus,
        peermem=any((sys / "module" / name).exists() for name in ("nvidia_peermem", "nv_peer_mem")),
        dmabuf=_dmabuf(proc) if gpus else "",
        interfaces=tuple(_interfaces(sys)),
    )


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):  # the latter for a name that is not valid in the DNS
        return False


def _capable(proc: pathlib.Path, bit: int) -> bool:
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", (proc / "self/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return bool(found) and bool(int(found[1], 16) >> bit & 1)  # type: ignore[index]


def _filesystem_bytes(path: pathlib.Path) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _chosen(text: str) -> str:
    """Of "always [madvise] never", madvise."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else text


def _last(text: str) -> int:
    words = text.split()
    return int(words[-1]) if words and words[-1].isdigit() else 0


def _dmabuf(proc: pathlib.Path) -> str:
    """Why GPU memory cannot be exported as a dma-buf to NICs, "" where it can: Linux 5.12 and the open driver do it."""
    version = tuple(int(n) for n in re.findall(r"[0-9]+", platform.release())[:2])
    if version < (5, 12):
        return f"Linux {platform.release()} is older than 5.12"
    if "Open Kernel Module" not in detect.line(proc / "driver/nvidia/version"):
        return "the NVIDIA driver's kernel module is not the open one"
    return ""


def _interfaces(sys: pathlib.Path) -> list[Interface]:
    addresses: dict[str, list[str]] = {}
    for entry in interfaces.addresses():
        addresses.setdefault(entry.interface, []).append(entry.address)
    found = []
    for folder in sorted((sys / "class/net").glob("*")):
        state = detect.line(folder / "operstate", "unknown")
        speed = max(0, detect.number(folder / "speed"))
        mtu = detect.number(folder / "mtu")
        found.append(Interface(folder.name, state, mtu, speed, tuple(addresses.get(folder.name, ()))))
    return found
