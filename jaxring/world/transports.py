"""How messages travel between two processes, and this one's side of links that are made by offerings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.topology import rdma
from jaxring.world import links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

logger = logging.getLogger("jaxring.world")


class Transports:
    """Those of this process. JoinError where it lacks what its settings ask for."""

    def __init__(self, native: Native, settings: Settings, gpus: Sequence[str]) -> None:
        self._native, self._settings = native, settings
        self._load_tls()
        self._load_plugin()
        self.rails = rdma.rails(native, settings, gpus)

    def between(self, own: ProcessInfo, peer: ProcessInfo) -> str:
        """How messages between this process and `peer` travel: "shm" on one host, otherwise "plugin", "verbs" or "tcp".

        Raises JoinError where JAXRING_NET=IB asks for RDMA and the two have no kind of it in common.
        """
        if peer.host_id == own.host_id and not self._settings.shm_disable:
            return "shm"
        if self._settings.plugin:
            return "plugin"
        if rdma.common(own.rdma, peer.rdma):
            return "verbs"
        if self._settings.net == "ib":
            raise JoinError(
                f"JAXRING_NET=IB asks for RDMA, and {own} and {peer} have no kind of it in common: "
                f"{', '.join(own.rdma)} here, {', '.join(peer.rdma)} there. JAXRING_IB_HCA and "
                "JAXRING_IB_GID_INDEX choose devices and addresses."
            )
        return "tcp"

    def offering(self, own: ProcessInfo, transport: str, kind: str, channel: int) -> links.Offering | None:
        """This side of a link by an offering; None for the other transports. Channels take the rails in turn."""
        if transport == "plugin" and self._settings.plugin:
            return links.by_plugin(self._native)
        if transport != "verbs":
            return None
        fitting = [rail for rail in self.rails if rail.kind == kind]
        if not fitting:
            raise JoinError(f"{own} has no active RDMA port of kind {kind!r}.")
        return links.by_verbs(self._native, fitting[channel % len(fitting)], self._settings)

    def _load_tls(self) -> None:
        if not self._settings.tls:
            return
        try:
            logger.info("TLS by %s", self._native.tls_load())
        except RuntimeError as error:
            raise JoinError(f"JAXRING_NET=TLS asks for TLS: {error}.") from error

    def _load_plugin(self) -> None:
        name = self._settings.plugin
        if not name:
            return
        try:
            logger.info("network plugin %s", self._native.plugin_load(name))
        except RuntimeError as error:
            raise JoinError(f"JAXRING_NET=plugin:{name}: {error}.") from error
