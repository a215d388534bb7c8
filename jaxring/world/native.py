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

    def tcp_attach(self, peer: int, channel: int, *, fd: int, sending: bool, key: bytes, timeout_s: float) -> None:
        """Make a link of the connected non-blocking socket `fd`.

        With a key the two ends first do a TLS handshake and encrypt from then on. Raises RuntimeError where it fails.
        """

    def tls_load(self) -> str:
        """Open OpenSSL's library, once; returns its version. Raises RuntimeError."""

    def control(self, peer: int, *, fd: int, dialled: bool, key: bytes, timeout_s: float) -> None:
        """Make the control connection: it carries heartbeats and failures, and its end means that the peer is dead.

        `key` as for `tcp_attach`.
        """

    def offered_load(self, transport: str, what: str) -> str:
        """Load what a transport needs, once; returns a description. This and the functions below raise RuntimeError."""

    def offered_offer(self, transport: str, peer: int, channel: int, sending: bool, place: dict[str, str]) -> str:
        """Make this end of a link; returns the address that the peer needs."""

    def offered_prepare(self, transport: str, peer: int, channel: int, sending: bool, offer: str) -> None:
        """Give this end the other end's address: from now on it can receive."""

    def offered_finish(
        self, transport: str, peer: int, channel: int, sending: bool, *, fd: int, timeout_s: float
    ) -> str:
        """Connect and put the link into service; returns a description. `fd` is the socket that set it up."""
