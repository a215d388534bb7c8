"""Findings about a host: what it lacks, what that costs, and how to correct it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.settings.sizes import shown
from jaxring.topology import detect, paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from jaxring.settings import Settings
    from jaxring.topology.host import Host
    from jaxring.topology.machine import Machine
    from jaxring.topology.rdma import Port

# The length of a link's rings: LL's slots and Simple's buffer, rounded up.
_LL_BYTES = 256 * 1024
_SMALL_SHM = 1 << 30


@dataclasses.dataclass(frozen=True)
class Finding:
    """``grave`` says that something will fail; other findings cost speed or are advice."""

    what: str
    cost: str
    mend: str
    grave: bool = False


def find(
    host: Host, ports: Sequence[Port], machine: Machine, settings: Settings, cpus: Collection[int]
) -> list[Finding]:
    """All findings, the grave ones first. `cpus` are those that this process may run on."""
    found = [
        *_rdma(host, ports),
        *_memlock(host, ports, settings),
        *_mtu(host, ports),
        *_distances(ports, machine, cpus),
        *_gpus(host, ports),
        *_host(host),
    ]
    return sorted(found, key=lambda finding: not finding.grave)


def _rdma(host: Host, ports: Sequence[Port]) -> Iterator[Finding]:
    if not ports:
        mend = "Where there are RDMA NICs, load their drivers (rdma-core) and pass /dev/infiniband into the container."
        if host.kubernetes:
            mend = "Ask for the NICs in the pod's resources, such as `rdma/hca: 1`, from the RDMA device plugin."
        yield Finding("There is no RDMA device.", "Between hosts data goes by TCP, which takes CPU time.", mend)
    for port in ports:
        if not port.active:
            yield Finding(
                f"{port} is not active.",
                "It carries nothing.",
                "Bring the link up: cable, switch port, `ip link set up`; on InfiniBand a subnet manager.",
            )
        elif port.layer == "RoCE" and not any(g.type == "RoCE v2" and g.family == "IPv4" for g in port.gids):
            yield Finding(
                f"{port} has no GID of RoCE v2 with an IPv4 address.",
                "Peers that have one use another kind, and then nothing is in common: TCP, or an error with NET=IB.",
                f"Give {port.interface or 'its interface'} an IPv4 address; see the GID table above.",
            )
    speeds = {port.mbps for port in ports if port.active}
    if len(speeds) > 1:
        yield Finding(
            f"Active RDMA ports have different speeds: {', '.join(f'{s // 1000}' for s in sorted(speeds))} Gbit/s.",
            "Channels take the ports in turn, so the slowest sets the pace.",
            "Choose ports of one speed by JAXRING_IB_HCA.",
        )


def _memlock(host: Host, ports: Sequence[Port], settings: Settings) -> Iterator[Finding]:
    if host.memlock < 0 or host.ipc_lock:
        return
    link = settings.buffsize + _LL_BYTES
    mend = "Raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in the service, memlock in /etc/security/limits.d."
    if host.kubernetes:
        mend = "Add IPC_LOCK to the container's securityContext.capabilities."
    yield Finding(
        f"The limit of locked memory is {shown(host.memlock)}.",
        f"A link by RDMA registers {shown(link)}, so {host.memlock // link} can be made; the next is refused.",
        mend,
        grave=any(port.active for port in ports),
    )


def _mtu(host: Host, ports: Sequence[Port]) -> Iterator[Finding]:
    of_interface = {interface.name: interface.mtu for interface in host.interfaces}
    for port in ports:
        link = of_interface.get(port.interface, 0)
        # A RoCE packet has up to 58 bytes around its payload, which is a power of two.
        possible = next((size for size in (4096, 2048, 1024, 512, 256) if size + 58 <= link), 0)
        if port.active and port.layer == "RoCE" and 0 < port.mtu < 4096:
            why = f"{port.interface} allows {possible}" if possible else "of its interface's MTU"
            yield Finding(
                f"{port} sends packets of {port.mtu} bytes; {why}.",
                "More packets for the same bytes; both ends must agree, the smaller counts.",
                f"Set the MTU of {port.interface} to 4200 or more, on all hosts and on the switches between.",
            )
    mtus = {port.mtu for port in ports if port.active and port.mtu}
    if len(mtus) > 1:
        yield Finding(
            f"Active RDMA ports have different MTUs: {', '.join(map(str, sorted(mtus)))}.",
            "A link between two takes the smaller; a mismatch with the switch loses packets.",
            "Give all the same.",
        )
    plain = {i.mtu for i in host.interfaces if i.state == "up" and i.addresses and i.name != "lo"}
    if len(plain) > 1:
        yield Finding(
            f"Interfaces that are up have different MTUs: {', '.join(map(str, sorted(plain)))}.",
            "Where a packet meets a smaller one on its way, TCP stalls if ICMP is filtered.",
            "Choose one network by JAXRING_SOCKET_IFNAME, or give all the same MTU.",
        )


def _distances(ports: Sequence[Port], machine: Machine, cpus: Collection[int]) -> Iterator[Finding]:
    far = [str(p) for p in ports if p.active and paths.to_cpus(machine, detect.busid(p.pci), cpus) == "sys"]
    if far:
        yield Finding(
            f"This process runs on no CPU beside {', '.join(far)}.",
            "What goes there crosses the link between CPUs: less bandwidth, more latency. Nearer ports come first.",
            "Start it beside the NIC: `numactl --cpunodebind`, or the pod's topology manager (single-numa-node).",
        )


def _gpus(host: Host, ports: Sequence[Port]) -> Iterator[Finding]:
    if host.gpus and ports and host.dmabuf and not host.peermem:
        yield Finding(
            f"NICs cannot reach GPU memory: no nvidia-peermem, and no dma-buf since {host.dmabuf}.",
            "GPUDirect RDMA is not possible: GPUs' data goes through host memory.",
            "`modprobe nvidia-peermem`, or the open kernel module of the NVIDIA driver with Linux 5.12 or later.",
        )


def _host(host: Host) -> Iterator[Finding]:
    if not host.resolves:
        yield Finding(
            f"This host's name, {host.name}, has no address here.",
            "JAX's Gloo asks for it and ends a job of several processes: gloo/transport/tcp/device.cc, rv == 0.",
            f"Add a line for {host.name} to /etc/hosts, with the address by which the job's other hosts reach it.",
            grave=True,
        )
    if 0 <= host.shm_bytes < _SMALL_SHM:
        mend = "`mount -o remount,size=8G /dev/shm`; `docker run --shm-size=8g`."
        if host.kubernetes:
            mend = "Mount an emptyDir with medium: Memory at /dev/shm."
        yield Finding(
            f"/dev/shm has {shown(host.shm_bytes)}.",
            "jaxring's shared memory is not there (memfd), but NCCL's, Open MPI's and PyTorch's is, and they fail.",
            mend,
        )
    if host.congestion == "bbr":
        yield Finding(
            "TCP's congestion control is bbr.",
            "It paces what it sends, which within a data centre can cost half the bandwidth.",
            "JAXRING_SOCKET_CONGESTION=reno (or cubic, dctcp), or `sysctl net.ipv4.tcp_congestion_control=...`.",
        )
    if host.huge_pages == "never":
        yield Finding(
            "Transparent huge pages are off.",
            "The first touch of a large result takes some 8 times longer.",
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` on the host.",
        )
    if host.cpus == 1:
        yield Finding(
            "This process may run on one CPU only.",
            "XLA's threads and the engine's take turns on it.",
            "Give it two or more (cpuset, resources.limits.cpu).",
        )
