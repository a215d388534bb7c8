"""What a World asks of the native engine."""

from __future__ import annotations

from typing import Protocol

from jaxring.topology.rdma import Verbs


class Native(Verbs, Protocol):
    """The engine's functions for links.

    A descriptor `fd` belongs to the engine from the call on, also when the call raises. It goes by name:
    `jaxring.world.closable` closes it where the call is refused.
    """

    def bell_fd(self) -> int:
        """The memfd of this process's doorbell."""

    def shm_create(self, peer: int, channel: int) -> int:
        """Make the ring of a sending link; returns its memfd, which stays open and the engine's."""

    def blocks_fd(self) -> int:
        """The memfd of what this process has for several others of its host, made at first use; it is the engine's."""

    def shm_ring(self, peer: int, channel: int, bell_path: str) -> None:
        """Complete a sending link with the receiver's doorbell."""

    def shm_attach(self, peer: int, channel: int, ring_path: str, blocks_path: str, bell_path: str) -> None:
        """Make a receiving link from the sender's ring, blocks and doorbell."""

    def tcp_prepare(self, peer: int, channel: int, sending: bool) -> None:
        """Get the memory of a link that `tcp_attach` will make, before the two ends agree on it."""

    def tcp_attach(
        self, peer: int, channel: int, *, fd: int, sending: bool, key: bytes, timeout_s: float, path: str
    ) -> None:
        """Make a link of the connected non-blocking socket `fd`.

        With a key the two ends first do a TLS handshake and encrypt from then on. Raises RuntimeError where it fails.
        With `path`, a name that the other end gives, too, it can go on over another connection.
        """

    def tls_load(self) -> str:
        """Open OpenSSL's library, once; returns its version. Raises RuntimeError."""

    def control(self, peer: int, *, fd: int, dialled: bool, key: bytes, timeout_s: float, path: str) -> None:
        """Make the control connection: it carries heartbeats and failures, and its end means that the peer is dead.

        `key` and `path` as for `tcp_attach`.
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
        """Go on over the connected socket `fd`, where the other end has got so many bytes. `key` as for `tcp_attach`.

        `detour`: it is not the path that the connection began with.
        """

    def offered_load(self, transport: str, what: str) -> str:
        """Load what a transport needs, once; returns a description. This and the functions below raise RuntimeError."""

    def offered_offer(self, transport: str, peer: int, channel: int, sending: bool, place: dict[str, str]) -> str:
        """Make this end of a link; returns the address that the peer needs."""

    def offered_prepare(self, transport: str, peer: int, channel: int, sending: bool, offer: str) -> None:
        """Give this end the other end's address: from now on it can receive."""

    def offered_finish(
        self, transport: str, peer: int, channel: int, sending: bool, *, fd: int, timeout_s: float, path: str
    ) -> str:
        """Connect and put the link into service; returns a description. `fd` is the socket that set it up.

        With `path`, a name that the other end gives, too, it can go on over other RDMA ports, by the functions below.
        They raise ValueError where the link is gone or `attempt` is not the latest one, RuntimeError where ports do
        not work.
        """

    def link_offer(self, path: str, dialled: bool, attempt: int, place: dict[str, str]) -> str:
        """Make an end at a place, beside the present one; returns the address that the peer needs."""

    def link_prepare(self, path: str, dialled: bool, attempt: int, offer: str) -> None:
        """Give that end the other end's address."""

    def link_try(self, path: str, attempt: int, timeout_s: float) -> None:
        """Wait until something has crossed the new ports and come back."""

    def link_switch(self, path: str, dialled: bool, attempt: int, received: str) -> str:
        """End the old ports and go on over the new ones.

        The receiving end returns what it has received, which is what the sending end gives as `received`. The sending
        end keeps its old ports, and all memory registered with their device, until `link_discard`.
        """

    def link_take_over(self, path: str, dialled: bool, attempt: int, *, fd: int, detour: bool) -> None:
        """Keep the socket `fd` beside the link from now on. `detour` as for `path_resume`."""

    def link_discard(self, path: str) -> None:
        """Destroy the ports that the link has left. Seconds on some devices; the link works and may move meanwhile."""
