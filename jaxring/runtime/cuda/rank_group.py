"""Sets up the CUDA engine's communicators: ranks exchange offers of memory through the job's key-value store."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxring.errors import JoinError
from jaxring.plan import protocols

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.world.store import Store

logger = logging.getLogger("jaxring.runtime")


# The prefix of an error that is written in place of an offer.
_FAILED = b"failed: "


class WireShape(NamedTuple):
    """The slots of a connection, each way."""

    slots: int
    slot_bytes: int


def wires(slots: int, most_bytes: int) -> tuple[WireShape, ...]:
    """For each protocol that carries messages, by its number, so many slots of at most so many bytes each."""
    return tuple(WireShape(slots, min(each.slot_bytes, most_bytes)) for each in protocols.MESSAGES.values())


class Shape(NamedTuple):
    """A communicator's shape: most lanes, the protocols' `wires`, and bytes of a stage."""

    lanes: int
    wires: tuple[WireShape, ...]
    stage_bytes: int


class GroupRank(NamedTuple):
    """A rank of a communicator: its process, its device's number there (-1 in other processes), the domain of ranks
    that address each other's memory, and a name for messages."""

    process: int
    device: int
    domain: int
    name: str


class Location(Protocol):
    """A place in a rank's memory, of the native module: a registered region, and an offset in bytes."""

    @property
    def region(self) -> int: ...

    @property
    def offset(self) -> int: ...


class Group:
    """One communicator of this process. Callers hold `lock`, so that one thread at a time uses its methods.

    ``name`` is the same in all its processes. ``store`` is None where all ranks are in this process.
    """

    def __init__(
        self,
        native: Any,
        name: str,
        ranks: list[GroupRank],
        shape: Shape,
        store: Store | None,
        timeout_s: float,
    ) -> None:
        self.lock = threading.Lock()
        self.domains = [rank.domain for rank in ranks]
        self._prefix = f"jaxring/cuda/{name}/"
        self._store, self._timeout_s = store, timeout_s
        self._said: dict[str, Location | None] = {}
        # Of each meeting who has come, as far as this process knows, and a lock for its threads that come to it.
        self._met: dict[str, tuple[threading.Lock, set[int]]] = {}
        self._ready = self._landed = self._multicast = False
        self._location = native.Location
        self._nothing: Location = native.Location(region=0, offset=0)
        self.communicator = native.communicator(
            name,
            [native.Rank(**rank._asdict()) for rank in ranks],
            shape.lanes,
            [native.WireShape(**wire._asdict()) for wire in shape.wires],
            shape.stage_bytes,
            timeout_s,
        )
        self.local = [rank for rank in range(len(ranks)) if self.communicator.local(rank)]
        owners = [rank.process for rank in ranks]
        near = {owners[peer] for rank in self.local for peer in self.communicator.members(rank)}
        self._own = owners[self.local[0]] if self.local else -1
        # The other processes with which this one shares memory.
        self.near = sorted(near - {self._own})
        # Whether this process's ranks have several devices.
        self.several = len({ranks[rank].device for rank in self.local}) > 1

    def prepare(self) -> None:
        """Exchange memory among the ranks of each domain and test every path. Raises JoinError."""
        if self._ready:
            return
        made = self.communicator
        for rank in self.local:
            self._say(f"arena/{rank}", functools.partial(made.offer_arena, rank))
        for rank in self.local:
            for peer in made.members(rank):
                self._do(made.enter_arena, rank, peer, self._fetch(f"arena/{peer}"))
            self._do(made.probe, rank)
            self._say(f"probed/{rank}", lambda: self._nothing)
        for rank in self.local:
            for peer in made.members(rank):
                self._fetch(f"probed/{peer}")
            self._do(made.verify, rank)
        self._ready = True

    def connect(self, rank_peers: dict[int, set[int]], protocol: str, to_self: bool = False) -> None:
        """Connections of local ranks with the peers that they send messages to or receive them from.

        ``to_self``: a rank among its own peers means that; otherwise it stands for its own buffers.
        """
        made, number = self.communicator, protocols.GPU[protocol]
        wires = [
            (rank, peer)
            for rank in self.local
            for peer in sorted(rank_peers.get(rank, ()))
            if (peer != rank or to_self) and not made.connected(rank, peer, number)
        ]
        near = [(rank, peer) for rank, peer in wires if self.domains[rank] == self.domains[peer]]
        for rank, peer in near:
            self._say(f"wire/{protocol}/{rank}/{peer}", functools.partial(made.offer_wire, rank, peer, number))
        for rank, peer in near:
            self._do(made.connect_wire, rank, peer, number, self._fetch(f"wire/{protocol}/{peer}/{rank}"))
        for rank, peer in wires:
            if (rank, peer) not in near:
                how = self._do(made.connect_network, rank, peer, number)
                logger.info("slots of rank %d for rank %d, %s: %s", rank, peer, protocol, how)

    def offer_staging(self, nbytes: int) -> None:
        """Exchange the memory that copies of a domain's ranks land in, once: ``nbytes`` of each."""
        if self._landed:
            return
        made = self.communicator
        for rank in self.local:
            self._say(f"staging/{rank}", functools.partial(made.offer_staging, rank, nbytes))
        for rank in self.local:
            for peer in made.members(rank):
                self._do(made.enter_staging, rank, peer, self._fetch(f"staging/{peer}"))
        self._landed = True

    def offer_replacements(self, in_bytes: int, out_bytes: int) -> str:
        """Make memory for launches whose buffers the other processes have not mapped.

        Returns why there is none for some rank, or "".
        """
        for rank in self.local:
            try:
                self.communicator.offer_replacements(rank, in_bytes, out_bytes)
            except RuntimeError as error:
                return str(error)
        return ""

    def meet(self, key: str, first: Callable[[], None]) -> None:
        """Call ``first``, then wait until all processes that share memory have done so for this key.

        Called without `lock`: processes may make their plans in different orders. A process that gets its plan only
        then runs no kernel of it while another one still waits for a mapping, which a driver may make only when no
        kernel runs.
        """
        store = self._store
        if store is None or not self.near:
            first()
            return
        # Every loading of a program has a key. So there is an entry for each reader, who deletes it.
        folder = f"{self._prefix}met/{key}"
        lock, met = self._met.setdefault(key, (threading.Lock(), set()))
        with lock:
            if self._own not in met:
                said = b""
                try:
                    self._do(first)
                    met.add(self._own)
                except JoinError as error:
                    said = _FAILED + str(error).encode()
                    raise
                finally:
                    for process in self.near:
                        store.replace(f"{folder}/{self._own}/{process}/said", said)
            for process in [process for process in self.near if process not in met]:
                said = store.get(f"{folder}/{process}/{self._own}/said", self._timeout_s)
                store.delete(f"{folder}/{process}/{self._own}")
                _raise_failure(said)
                met.add(process)

    def multicast(self, nbytes: int) -> None:
        """Make multicast memory for all ranks, once: ``nbytes`` of each. Raises JoinError that names rank and step."""
        if self._multicast:
            return
        made, count = self.communicator, len(self.domains)
        if 0 in self.local:
            self._say("multicast/0", functools.partial(made.offer_multicast, nbytes))
        found = self._fetch("multicast/0")
        for step, take in (
            ("added", functools.partial(self._join_multicast, found)),
            ("bound", made.bind_multicast),
            ("mapped", made.map_multicast),
            ("probed", made.probe_multicast),
            ("verified", made.verify_multicast),
        ):
            for rank in self.local:
                self._say(f"multicast/{step}/{rank}", functools.partial(self._taken, take, rank))
            for rank in range(count):
                self._fetch(f"multicast/{step}/{rank}")
        self._multicast = True

    def _join_multicast(self, found: Location, rank: int) -> None:
        self.communicator.join_multicast(rank, found)

    def _taken(self, step: Callable[[int], None], rank: int) -> Location:
        """A step that offers nothing but that it was taken."""
        step(rank)
        return self._nothing

    def _do(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except RuntimeError as error:
            raise JoinError(str(error)) from error

    def _say(self, key: str, offer: Callable[[], Location]) -> None:
        if key in self._said:
            return
        try:
            location = self._do(offer)
        except JoinError as error:
            # The peers that wait for the offer then fail with this error instead of at their deadline.
            if self._store is not None:
                self._store.set(self._prefix + key, _FAILED + str(error).encode())
            raise
        if self._store is not None:
            self._store.set(self._prefix + key, f"{location.region} {location.offset}".encode())
        self._said[key] = location

    def _fetch(self, key: str) -> Location:
        said = self._said.get(key)
        if said is not None:
            return said
        if self._store is None:
            raise JoinError(f"{key} was not offered")
        said_there = self._store.get(self._prefix + key, self._timeout_s)
        _raise_failure(said_there)
        region, offset = said_there.split()
        found: Location = self._location(region=int(region), offset=int(offset))
        return found


def _raise_failure(said: bytes) -> None:
    if said.startswith(_FAILED):
        raise JoinError(said.removeprefix(_FAILED).decode())
