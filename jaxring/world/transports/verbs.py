"""RDMA: a link's end is a queue pair on one of the process's active ports, which its channels take in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.topology import rdma
from jaxring.world.transports.record import Own, Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native


class Verbs(Transport):
    name = "verbs"
    words = "RDMA"
    preference = 30

    def found(self, native: Native) -> str:
        count = len(native.verbs_ports()[0])
        return f"RDMA ({count} port{'s' * (count > 1)})" if count else "no RDMA (no port here)"

    def joins(self, settings: Settings, own: ProcessInfo, peer: ProcessInfo) -> bool:
        if rdma.common(own.rdma, peer.rdma):
            return True
        if settings.net == "ib":
            raise JoinError(
                f"JAXRING_NET=IB asks for RDMA, and {own} and {peer} have no kind of it in common: "
                f"{', '.join(own.rdma)} here, {', '.join(peer.rdma)} there. JAXRING_IB_HCA and "
                "JAXRING_IB_GID_INDEX choose devices and addresses."
            )
        return False

    def kind(self, own: ProcessInfo, peer: ProcessInfo) -> str:
        return rdma.common(own.rdma, peer.rdma)

    def ports(self, info: ProcessInfo, kind: str) -> tuple[str, ...]:
        # iWARP reports a write as complete that may not have arrived.
        return () if kind == rdma.IWARP else tuple(name for each, name in info.rdma_ports if each == kind)

    def place(self, own: Own, kind: str, channel: int) -> Mapping[str, str]:
        fitting = [rail for rail in own.rails if rail.kind == kind]
        if not fitting:
            raise JoinError(f"This process has no active RDMA port of kind {kind!r}.")
        rail, settings = fitting[channel % len(fitting)], own.settings
        fields = {
            "device": rail.device,
            "port": rail.port,
            "gid_index": rail.gid_index,
            "address": rail.address,
            "queue_pairs": settings.ib_qps_per_connection,
            "timeout": settings.ib_timeout,
            "retry_count": settings.ib_retry_cnt,
        }
        return {name: str(value) for name, value in fields.items()}


TRANSPORT = Verbs()
