"""What a transport is: one record for each, exported by the transport's module."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING

from jaxring.errors import JoinError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from jaxring.settings import Settings
    from jaxring.topology.rdma import Rail
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

SOCKETS_INSTEAD = "JAXRING_NET=Socket takes TCP instead."


@dataclasses.dataclass(frozen=True)
class Own:
    """What a process's side of a link may depend on: its engine, its settings, and its RDMA ports, nearest first."""

    native: Native
    settings: Settings
    rails: tuple[Rail, ...] = ()


class Transport(abc.ABC):
    """What carries the messages of a link. The link's ends exchange offers, each a text, over an authenticated
    connection, which the engine then has: it may carry the messages, or say by its end that the peer is gone.

    ``name`` is the engine's (its record in ``ffi/transport/``), ``words`` is what logs and errors say. ``preference``:
    of two that join two processes, that with the lower number is taken. ``mend``: what the user can do where a link
    fails. ``by_addresses``: a link can go on over other addresses of its peer. ``within_host``: messages leave by no
    network interface.
    """

    name: str
    words: str
    preference: int
    mend: str = SOCKETS_INSTEAD
    by_addresses: bool = False
    within_host: bool = False

    def found(self, native: Native) -> str:
        """What this machine has of it, in the words of `jaxring --version`."""
        del native
        return self.words

    def load(self, own: Own) -> str:
        """Loads what the settings ask for, and describes it; "" where there is nothing. Raises JoinError."""
        del own
        return ""

    @abc.abstractmethod
    def joins(self, settings: Settings, own: ProcessInfo, peer: ProcessInfo) -> bool:
        """Whether messages between these two processes can travel by it; the same seen from both.

        Raises JoinError where the settings ask for it and the two cannot.
        """

    def kind(self, own: ProcessInfo, peer: ProcessInfo) -> str:
        """What must be the same on both ends of a link."""
        del own, peer
        return ""

    def ports(self, info: ProcessInfo, kind: str) -> tuple[str, ...]:
        """What a process's channels take in turn, in words, where links can go on over another one; () where not."""
        del info, kind
        return ()

    def place(self, own: Own, kind: str, channel: int) -> Mapping[str, str]:
        """Where this process's end of a link is to be, as the engine's half of the transport reads it.

        Raises JoinError where there is no place.
        """
        del own, kind, channel
        return {}

    def ready(self, sock: socket.socket, settings: Settings) -> None:
        """Sets what is to be set on the connection of a link that this process sends on. Raises JoinError, OSError."""
        del sock, settings

    def check(self, peer: ProcessInfo, offer: str) -> None:
        """Raises JoinError, or ValueError for nonsense, where the engine must not take this offer of the peer's."""
        del peer, offer


@dataclasses.dataclass(frozen=True)
class Offering:
    """This process's end of one link. ``kind`` must be the same on both ends. The methods raise RuntimeError, and
    MemoryError where the engine gets no memory for it."""

    transport: Transport
    kind: str
    place: Mapping[str, str]
    native: Native

    def offer(self, peer: int, channel: int, sending: bool) -> str:
        """Makes this end; returns what the peer needs to know."""
        return self.native.connector_offer(self.transport.name, peer, channel, sending, dict(self.place))

    def prepare(self, peer: int, channel: int, sending: bool, offer: str) -> None:
        """Gives this end the peer's offer."""
        self.native.connector_prepare(peer, channel, sending, offer)

    def finish(
        self, peer: int, channel: int, sending: bool, *, fd: int, key: bytes, timeout_s: float, path: str
    ) -> str:
        """Puts the link into service, takes ownership of the socket `fd`, and describes the link, or returns "".

        `key`: of TLS, b"" where the settings do not ask for it. `path`: see `jaxring.world.failover`.
        """
        return self.native.connector_finish(peer, channel, sending, fd=fd, key=key, timeout_s=timeout_s, path=path)

    def forget(self, peer: int, channel: int, sending: bool) -> None:
        """Drops this end where the link is not made."""
        self.native.connector_forget(peer, channel, sending)


@dataclasses.dataclass(frozen=True)
class PortPairs:
    """The pairs between two processes. Pair p has port p of either end, counted round; a link begins with the one that
    its channel has the number of. `words`: the transport's. `offering` is this end's part of a link over a pair."""

    words: str
    own: tuple[str, ...]
    theirs: tuple[str, ...]
    offering: Callable[[int], Offering]

    def __len__(self) -> int:
        return math.lcm(len(self.own), len(self.theirs))

    def name(self, pair: int) -> str:
        """The pair in words, seen from this end."""
        return f"{self.words} port {self.theirs[pair % len(self.theirs)]} (from {self.own[pair % len(self.own)]})"

    def after(self, pair: int) -> Iterator[int]:
        """All of them, that one last."""
        return ((pair + step) % len(self) for step in range(1, len(self) + 1))


def load(native: Native, transport: str, what: str, asked: str) -> str:
    """Has the engine's half load ``what``. JoinError, with the setting that ``asked`` for it, where it cannot."""
    try:
        return native.connector_load(transport, what)
    except RuntimeError as error:
        raise JoinError(f"{asked}: {error}.") from error
