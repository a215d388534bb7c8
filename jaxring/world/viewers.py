"""Answers viewers, who hold a key of the job but not its secret: `jaxring top` on another host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from jaxring.errors import JoinError

if TYPE_CHECKING:
    import socket

    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.published import Published

# The longest time for a viewer to ask and take the answer.
_ANSWER_S = 30.0


class ViewerService(Protocol):
    """Shows a process of the job to viewers."""

    def open(self, published: Published, own: ProcessInfo, secret: bytes) -> None:
        """The secret is known; called for each connection."""

    def answer(self, sock: socket.socket, session: Session, deadline: float) -> None:
        """Serve an authenticated viewer. What it raises is told to the viewer."""

    def close(self) -> None:
        """The World is closed."""


def answer(service: ViewerService | None, sock: socket.socket, session: Session) -> None:
    """Have ``service`` serve an authenticated viewer. Raises what it does, and JoinError without one."""
    if service is None:
        raise JoinError("This process shows nothing to viewers.")
    service.answer(sock, session, time.monotonic() + _ANSWER_S)
