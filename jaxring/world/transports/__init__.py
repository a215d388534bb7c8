"""How messages travel between two processes: by shared memory, by TCP, or by a transport of `OFFERED`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.topology import rdma
from jaxring.world.transports import plugin, verbs
from jaxring.world.transports.record import Offered, Offering, Own, PortPairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

logger = logging.getLogger("jaxring.world")

# Those whose links are set up by offers, by name: the first one that joins two processes of different hosts is taken.
OFFERED: dict[str, Offered] = {each.name: each for each in (plugin.TRANSPORT, verbs.TRANSPORT)}


class Transports:
    """Those of this process. JoinError where it lacks what its settings ask for."""

    def __init__(self, native: Native, settings: Settings, gpus: Sequence[str]) -> None:
        self._load_tls(native, settings)
        for each in OFFERED.values():
            if loaded := each.load(Own(native, settings)):
                logger.info("%s %s", each.words, loaded)
        self.rails = rdma.rails(native, settings, gpus)
        self._own = Own(native, settings, tuple(self.rails))

    def between(self, own: ProcessInfo, peer: ProcessInfo) -> str:
        """How messages between this process and `peer` travel: "shm" on one host, else a name of `OFFERED`, or "tcp".

        Raises JoinError where the settings ask for a transport that the two do not have in common.
        """
        settings = self._own.settings
        if peer.host_id == own.host_id and not settings.shm_disable:
            return "shm"
        return next((name for name, each in OFFERED.items() if each.joins(settings, own, peer)), "tcp")

    def offering(self, own: ProcessInfo, peer: ProcessInfo, transport: str, channel: int) -> Offering | None:
        """This side of a link to `peer` by an offering; None for the other transports."""
        return self.accepting(transport, OFFERED[transport].kind(own, peer), channel) if transport in OFFERED else None

    def pairs(self, own: ProcessInfo, peer: ProcessInfo, transport: str) -> PortPairs | None:
        """The pairs of ports that a link to `peer` can go on over; None where there are none."""
        if transport not in OFFERED:
            return None
        each = OFFERED[transport]
        kind = each.kind(own, peer)
        ours, theirs = each.ports(own, kind), each.ports(peer, kind)
        if not ours or not theirs:
            return None
        return PortPairs(ours, theirs, lambda pair: self._by(each, kind, pair))

    def moving(self, kind: str, pair: int) -> Offering:
        """This side of a link that a peer has go on over that pair of ports of the kind."""
        return self._by(verbs.TRANSPORT, kind, pair)

    def accepting(self, transport: str, kind: str, channel: int) -> Offering | None:
        """The same for a link of that kind which a peer asks for."""
        if transport not in OFFERED:
            return None
        return self._by(OFFERED[transport], kind, channel)

    def _by(self, transport: Offered, kind: str, channel: int) -> Offering:
        return Offering(transport, kind, transport.place(self._own, kind, channel), self._own.native)

    def _load_tls(self, native: Native, settings: Settings) -> None:
        if not settings.tls:
            return
        try:
            logger.info("TLS by %s", native.tls_load())
        except RuntimeError as error:
            raise JoinError(f"JAXRING_NET=TLS asks for TLS: {error}.") from error
