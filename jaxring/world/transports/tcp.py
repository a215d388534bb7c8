"""TCP, plain or by TLS: the connection over which two processes agree on a link becomes the link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world.transports import congestion
from jaxring.world.transports.record import Own, Transport

if TYPE_CHECKING:
    import socket

    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native


class Tcp(Transport):
    name = "tcp"
    words = "TCP"
    preference = 40
    mend = ""
    by_addresses = True

    def found(self, native: Native) -> str:
        try:
            return f"{self.words}, TLS by {' '.join(native.tls_load().split()[:2])}"
        except RuntimeError:
            return f"{self.words}, no TLS (no libssl here)"

    def load(self, own: Own) -> str:
        if not own.settings.tls:
            return ""
        try:
            return f"encrypted by {own.native.tls_load()}"
        except RuntimeError as error:
            raise JoinError(f"JAXRING_NET=TLS asks for TLS: {error}.") from error

    def joins(self, settings: Settings, own: ProcessInfo, peer: ProcessInfo) -> bool:
        del settings, own, peer
        return True

    def ready(self, sock: socket.socket, settings: Settings) -> None:
        congestion.choose(sock, settings.socket_congestion)


TRANSPORT = Tcp()
