"""How messages travel between two processes: by one of `TRANSPORTS`."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.topology import rdma
from jaxring.world.transports.record import Offering, Own, PortPairs, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

logger = logging.getLogger("jaxring.world")


def _discover() -> dict[str, Transport]:
    """The records of all modules of this package by name, in the order of their preference.

    A module offers its transport as ``TRANSPORT``; those that only help others have none.
    """
    found: dict[str, Transport] = {}
    for module in pkgutil.iter_modules(__path__):
        transport = getattr(importlib.import_module(f"{__name__}.{module.name}"), "TRANSPORT", None)
        if transport is None:
            continue
        if transport.name in found:
            raise ValueError(f"there are two transports {transport.name!r}")
        found[transport.name] = transport
    return dict(sorted(found.items(), key=lambda entry: entry[1].preference))


# The first one that joins two processes is taken; TCP, the last, joins all.
TRANSPORTS: dict[str, Transport] = _discover()


class Transports:
    """Those of this process. JoinError where it lacks what its settings ask for."""

    def __init__(self, native: Native, settings: Settings, gpus: Sequence[str]) -> None:
        for each in TRANSPORTS.values():
            if loaded := each.load(Own(native, settings)):
                logger.info("%s %s", each.words, loaded)
        self.rails = rdma.rails(native, settings, gpus)
        self._own = Own(native, settings, tuple(self.rails))

    def between(self, own: ProcessInfo, peer: ProcessInfo) -> str:
        """How messages between this process and `peer` travel: a name of `TRANSPORTS`.

        Raises JoinError where the settings ask for a transport that the two do not have in common.
        """
        return next(name for name, each in TRANSPORTS.items() if each.joins(self._own.settings, own, peer))

    def offering(self, own: ProcessInfo, peer: ProcessInfo, transport: str, channel: int) -> Offering:
        """This side of a link to `peer`. Raises JoinError."""
        return self.accepting(transport, TRANSPORTS[transport].kind(own, peer), channel)

    def pairs(self, own: ProcessInfo, peer: ProcessInfo, transport: str) -> PortPairs | None:
        """The pairs of ports that a link to `peer` can go on over; None where there are none."""
        each = TRANSPORTS[transport]
        kind = each.kind(own, peer)
        ours, theirs = each.ports(own, kind), each.ports(peer, kind)
        if not ours or not theirs:
            return None
        return PortPairs(each.words, ours, theirs, lambda pair: self._by(each, kind, pair))

    def moving(self, own: ProcessInfo, transport: str, kind: str, pair: int) -> Offering:
        """This side of a link that a peer has go on over that pair of ports of the kind. Raises JoinError."""
        each = TRANSPORTS[transport]
        if not each.ports(own, kind):
            raise JoinError(f"{own} has no {each.words} ports of kind {kind!r} that a link can go on over.")
        return self._by(each, kind, pair)

    def accepting(self, transport: str, kind: str, channel: int) -> Offering:
        """This side of a link of that kind which a peer asks for. Raises JoinError."""
        return self._by(TRANSPORTS[transport], kind, channel)

    def _by(self, transport: Transport, kind: str, channel: int) -> Offering:
        return Offering(transport, kind, transport.place(self._own, kind, channel), self._own.native)
