"""How processes reach each other: shared memory, interfaces and transports."""

from __future__ import annotations

import dataclasses

from jaxring.settings import kinds
from jaxring.settings.row import row

# Slots of a ring of the Simple protocol, which share BUFFSIZE: as many as NCCL has.
SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Network:
    """Transports and their buffers."""

    shm_disable: bool = row(
        "flag",
        False,
        "1: processes of one host use the network instead of shared memory.",
        kinds.flag,
        shared=True,
        nccl=True,
    )
    net: str = row(
        "name",
        "",
        "Transport between hosts: IB (RDMA), Socket (TCP), TLS (TCP, encrypted with TLS 1.3 by OpenSSL's library, "
        "libssl.so.3 or 1.1), or plugin:NAME (NCCL's network plugin libnccl-net-NAME.so, or a path); empty: RDMA where "
        "both hosts have it, TCP otherwise.",
        kinds.transport,
        shared=True,
        nccl=True,
    )
    socket_ifname: str = row(
        "list",
        "",
        "Interfaces to listen on: comma list of name prefixes; a leading ^ excludes, a leading = makes names exact. "
        "Channels take the interfaces in turn; large messages go over all.",
        kinds.names,
        nccl=True,
    )
    port_range: str = row(
        "range",
        "",
        "Ports on which processes listen for each other, such as 20000-20099, for a firewall that opens few. Each "
        "process takes a free one for each interface; empty: the kernel chooses.",
        kinds.ports,
    )
    socket_congestion: str = row(
        "name",
        "",
        "TCP congestion control of the connections that carry data, such as cubic; empty: the host's. The pacing of "
        "bbr takes much of a core at 10 Gbit/s.",
        kinds.text_line,
    )
    nsocks: int = row(
        "integer",
        2,
        "Links to each peer process, at most one per lane; with TCP each is a socket.",
        kinds.integer(1, 64),
        shared=True,
        engines="CPU",
    )
    buffsize: int = row(
        "bytes",
        1 << 21,
        f"Bytes of a link's buffer of the Simple protocol, which has {SLOTS} slots. On the CPU, messages within a host "
        "use half a slot, and a process has 32 more slots for data that it sends to several processes of its host.",
        kinds.nbytes(SLOTS * 4096, 1 << 29, SLOTS * 4096),
        shared=True,
        nccl=True,
    )

    @property
    def ports(self) -> range:
        """The ports to listen on, empty for those that the kernel chooses."""
        low, _, high = self.port_range.partition("-")
        return range(int(low), int(high) + 1) if low else range(0)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of the Simple protocol: the longest message."""
        return self.buffsize // SLOTS

    @property
    def tls(self) -> bool:
        """Whether connections between hosts are encrypted."""
        return self.net == "tls"

    @property
    def plugin(self) -> str:
        """The network plugin's name or path, "" for none."""
        return self.net.removeprefix("plugin:") if self.net.startswith("plugin:") else ""
