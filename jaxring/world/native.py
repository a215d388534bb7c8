"""What a World asks of the native engine."""

from __future__ import annotations

from typing import Protocol

from jaxring.topology.rdma import Verbs


class Native(Verbs, Protocol):
    """The engine's functions for links.

    A descriptor `fd` belongs to the engine from the call on, also when the call raises. It goes by name:
    `jaxring.world.closable` closes it where the call is refused.
    """

    def tls_load(self) -> str:
        """Open OpenSSL's library, once; returns its version. Raises RuntimeError."""

    def connector_load(self, transport: str, what: str) -> str:
        """Load what a transport needs, once; returns a description. This and the functions below raise RuntimeError."""

    def connector_offer(self, transport: str, peer: int, channel: int, sending: bool, place: dict[str, str]) -> str:
        """Make this end of a link by a transport; returns what the peer needs to know.

        An end of that link that was not finished is forgotten. MemoryError where there is no memory for it.
        """

    def connector_prepare(self, peer: int, channel: int, sending: bool, offer: str) -> None:
        """Give this end the other end's offer: from now on it can receive."""

    def connector_finish(
        self, peer: int, channel: int, sending: bool, *, fd: int, key: bytes, timeout_s: float, path: str
    ) -> str:
        """Connect and put the link into service; returns a description, or "". `fd` is the socket that set it up,
        which does not block.

        With a `key` the two ends of a link by TCP first do a TLS handshake and encrypt from then on. With `path`, a
        name that the other end gives, too, it can go on over another connection, or an RDMA link over other ports.
        """

    def connector_forget(self, peer: int, channel: int, sending: bool) -> None:
        """Drop this end of a link, if there is one that is not finished."""

    def control(self, peer: int, *, fd: int, dialled: bool, key: bytes, timeout_s: float, path: str) -> None:
        """Make the control connection: it carries heartbeats and failures, and its end means that the peer is dead.

        `key` and `path` as for `connector_finish`.
        """

    def paths_lost(self, timeout_s: float) -> list[tuple[str, str]] | None:
        """The names of connections that this process has dialled and that have failed, and how each has failed.

        Waits until there is one. None once the engine ends. The functions below raise ValueError where the connection
        is gone, or where `attempt` is not the latest one.
        """

    def path_is_lost(self, path: str) -> bool:
        """Whether the connection of that name, which has failed, neither works again by itself nor is gone."""

    def path_lives(self, path: str) -> bool:
        """Whether there is a connection of that name, and it has not ended."""

    def path_fail(self, path: str, why: str) -> None:
        """Give the connection of that name up: its peer's process has ended. `why` goes into errors."""

    def path_suspend(self, path: str, dialled: bool, attempt: int) -> None:
        """Write no more to the connection of that name, whose end `dialled` this is. Begins an attempt."""

    def path_drain(self, path: str, dialled: bool, attempt: int) -> int:
        """Read what has come, and close the connection. Returns the bytes since its beginning."""

    def path_resume(
        self,
        path: str,
        dialled: bool,
        attempt: int,
        *,
        fd: int,
        key: bytes,
        timeout_s: float,
        received: int,
        detour: bool,
    ) -> None:
        """Go on over the connected socket `fd`, where the other end has got so many bytes.

        `key` as for `connector_finish`. `detour`: it is not the path that the connection began with.
        """

    def link_offer(self, path: str, dialled: bool, attempt: int, place: dict[str, str]) -> str:
        """Make an end of an RDMA link at a place, beside the present one; returns what the peer needs to know.

        This and the functions below raise ValueError where the link is gone or `attempt` is not the latest one,
        RuntimeError where ports do not work.
        """

    def link_prepare(self, path: str, dialled: bool, attempt: int, offer: str) -> None:
        """Give that end the other end's address."""

    def link_try(self, path: str, attempt: int, timeout_s: float) -> None:
        """Wait until something has crossed the new ports and come back."""

    def link_switch(self, path: str, dialled: bool, attempt: int, received: str) -> str:
        """End the old ports and go on over the new ones.

        The receiving end returns what it has received, which is what the sending end gives as `received`.
        """

    def link_take_over(self, path: str, dialled: bool, attempt: int, *, fd: int, detour: bool) -> None:
        """Keep the socket `fd` beside the link from now on. `detour` as for `path_resume`."""
