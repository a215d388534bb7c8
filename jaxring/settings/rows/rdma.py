"""RDMA ports and connections, and the topology by which near ones are found."""

from __future__ import annotations

import dataclasses

from jaxring.settings import kinds
from jaxring.settings.row import row


@dataclasses.dataclass(frozen=True)
class Rdma:
    """Ports, queue pairs and distances."""

    ib_hca: str = row(
        "list",
        "",
        "RDMA devices to use: comma list of name prefixes, each may end in :port; ^ excludes, = makes names exact.",
        kinds.names,
        nccl=True,
    )
    ib_gid_index: int = row(
        "integer",
        -1,
        "Index of the GID to use; unset: InfiniBand's LID, or RoCE v2 before v1 and IPv4 before IPv6.",
        kinds.integer(0, 65535),
        nccl=True,
    )
    ib_timeout: int = row(
        "integer",
        20,
        "How long an RDMA port waits for the acknowledgement of a packet: 4.096 us times 2 to the power of this.",
        kinds.integer(1, 31),
        nccl=True,
    )
    ib_retry_cnt: int = row(
        "integer", 7, "How often an RDMA port sends a packet again.", kinds.integer(0, 7), nccl=True
    )
    ib_qps_per_connection: int = row(
        "integer",
        1,
        "Queue pairs per RDMA connection; messages take turns on them.",
        kinds.integer(1, 16),
        shared=True,
        nccl=True,
    )
    net_gdr_level: str = row(
        "name",
        "pxb",
        "How far a NIC may be from a GPU to address its memory (GPUDirect RDMA): LOC (never), PIX, PXB, PHB or SYS. "
        "Data of a GPU that is farther away goes through pinned host memory.",
        kinds.one_of(*kinds.DISTANCES),
        nccl=True,
        engines="GPU",
    )
    topo_file: str = row(
        "path",
        "",
        "Topology of NICs and GPUs in NCCL's XML, used instead of this machine's /sys to choose near RDMA ports and "
        "by `jaxring topo`; and the order of hosts in rings, which `jaxring tune --ranks --out FILE` writes, used "
        "instead of that in the cache.",
        kinds.text_line,
        nccl=True,
    )
