"""Fuzz targets of what Python reads from the network or from files, for atheris: `readers.py TARGET [options]`.

A target lets through what its reader may raise; anything else is a finding. What is shown to people must be printable.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import types

import atheris

from jaxring.errors import JoinError
from jaxring.runtime.reporting import viewing
from jaxring.topology import elements, wiring, xml
from jaxring.topology.formats import graph
from jaxring.topology.routes import Routes
from jaxring.trace import diff, flight, operands, replay, view
from jaxring.world import identity, links, wire
from jaxring.world.connections import handshake
from jaxring.world.transports import shm
from jaxring.world.transports.record import Offering


def _instrument(module: types.ModuleType) -> None:
    """Has atheris see a module's functions and methods. Its import hook does not see into editable installs."""
    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    for owner in owners:
        for function in vars(owner).values():
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)


for _module in (
    elements,
    graph,
    xml,
    diff,
    flight,
    operands,
    replay,
    view,
    handshake,
    identity,
    links,
    shm,
    viewing,
    wire,
):
    _instrument(_module)

_SECRET = b"s" * handshake.SECRET_BYTES
# Made of the class, so that the type checker says which field it lacks when one is added.
_INFO = identity.ProcessInfo(
    index=1,
    pid=2147483647,
    pid_namespace=1,
    hostname="h",
    host_id="i",
    token="t",
    addresses=(("lo", "127.0.0.1", 1),),
    rdma_ports=(),
    processors="3",
    kernel="0",
    profile="0",
    order="0",
    settings="",
    version="0",
)
_PEER = json.loads(_INFO.to_json())


class Socket:
    """Plays a peer that sends `data` in pieces and takes whatever it is sent."""

    def __init__(self, data: bytes) -> None:
        self.data, self.sent = data, b""

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, size: int) -> bytes:
        assert size > 0
        part, self.data = self.data[: min(size, 7000)], self.data[min(size, 7000) :]
        return part


class Native:
    """Takes what a link is made of."""

    def connector_offer(self, transport: str, peer: int, channel: int, sending: bool, place: dict[str, str]) -> str:
        return "1 2"

    def connector_prepare(self, peer: int, channel: int, sending: bool, offer: str) -> None:
        raise AssertionError("memory was taken that there is not")

    def connector_forget(self, peer: int, channel: int, sending: bool) -> None:
        pass


def _told(error: Exception) -> None:
    assert str(error).isprintable(), repr(error)


def _sessions(hello: bytes) -> tuple[handshake.Session, handshake.Session]:
    """Both ends of a connection that is authenticated, from process 1 to process 0."""
    acceptance = handshake.Acceptance(_SECRET, 0, 4)
    nonce = acceptance.feed(hello)[:32]
    acceptance.feed(handshake._proof(_SECRET, b"dialler\0", hello, nonce))
    assert acceptance.session is not None
    return handshake.Session(1, acceptance.session._key, dialled=True), acceptance.session


_HELLO = handshake._HELLO.pack(handshake.MAGIC, 1, 0, b"n" * 32)
_LOOK = handshake._HELLO.pack(handshake.MAGIC, handshake.VIEWER, 0, b"n" * 32)
_DIALLED, _ACCEPTED = _sessions(_HELLO)
assert identity.ProcessInfo.from_json(_INFO.to_json()) == _INFO


def unauthenticated(data: bytes) -> None:
    """Who does not know the secret: as dialler, and as acceptor."""
    acceptance = handshake.Acceptance(_SECRET, 0, 4)
    rest = data
    if data[:1] == b"v":  # who says that it is a viewer
        acceptance.feed(_LOOK)
        rest = data[1:]
    try:
        while len(rest) >= acceptance.needed:
            part, rest = rest[: acceptance.needed], rest[acceptance.needed :]
            assert len(acceptance.feed(part)) in (0, 64)
            assert acceptance.session is None
    except ValueError as error:
        _told(error)
    try:
        handshake.authenticate(Socket(data), _SECRET, 0, 1, time.monotonic() + 60)  # type: ignore[arg-type]
        raise AssertionError("it answered right")
    except (OSError, JoinError) as error:
        _told(error)
    try:
        _ACCEPTED.receive(Socket(data), time.monotonic() + 60)  # type: ignore[arg-type]
        raise AssertionError("its tag was right")
    except (OSError, ValueError) as error:
        _told(error)


def request(data: bytes) -> None:
    """A member's request, its answer, and what it publishes of itself: all JSON."""
    try:
        identity.ProcessInfo.from_json(data)
    except ValueError as error:
        _told(error)
    if len(data) > handshake.MAX_MESSAGE_BYTES:
        return
    for sender, receiver in ((_DIALLED, _ACCEPTED), (_ACCEPTED, _DIALLED)):
        sock = Socket(len(data).to_bytes(4, "big") + sender._tag(sender._labels[0], data) + data)
        try:
            message = receiver.receive(sock, time.monotonic() + 60)  # type: ignore[arg-type]
        except ValueError as error:
            _told(error)
            return
        assert json.loads(wire.encode(message)) is not None
    try:
        asked = links.Request(message, _ACCEPTED)
        shm.TRANSPORT.check(_INFO, asked.offer)
        raise AssertionError("there is no such process")
    except (ValueError, JoinError) as error:
        _told(error)
    payload = len(data).to_bytes(4, "big") + _ACCEPTED._tag(_ACCEPTED._labels[0], data) + data
    try:
        links.dial(
            Socket(payload),  # type: ignore[arg-type]
            _DIALLED,
            _INFO,
            _INFO,
            0,
            Offering(shm.TRANSPORT, "", {}, Native()),  # type: ignore[arg-type]
            time.monotonic() + 60,
            False,
        )
        raise AssertionError("a link was made")
    except (ValueError, OSError, JoinError) as error:
        _told(error)


class Published:
    """A job of one process."""

    def there(self) -> list[identity.ProcessInfo]:
        return [_INFO]


def viewer(data: bytes) -> None:
    """A viewer's request, what a process answers to it, and the file that `jaxring top --share` writes."""
    try:
        again = viewing.decode(viewing.decode(data).encode())
        assert again == viewing.decode(data)
    except ValueError as error:
        _told(error)
    if len(data) > handshake.MAX_MESSAGE_BYTES:
        return
    service = viewing.FlightService(lambda: b"record", "job", False)
    service.open(Published(), _INFO, _SECRET)  # type: ignore[arg-type]
    sock = Socket(len(data).to_bytes(4, "big") + _DIALLED._tag(_DIALLED._labels[0], data) + data)
    try:
        service.answer(sock, _ACCEPTED, time.monotonic() + 60)  # type: ignore[arg-type]
        assert wire.decode(data, len(data))["view"] in ("members", "record")
    except (ValueError, JoinError) as error:
        _told(error)
    finally:
        service.close()
    bulk = len(data).to_bytes(4, "big") + _ACCEPTED._tag(b"bulk\0", data) + data
    assert _DIALLED.receive_bulk(Socket(bulk), time.monotonic() + 60) == data  # type: ignore[arg-type]
    try:
        _DIALLED.receive_bulk(Socket(data), time.monotonic() + 60)  # type: ignore[arg-type]
        raise AssertionError("its tag was right")
    except (OSError, ValueError) as error:
        _told(error)


def topology(data: bytes) -> None:
    """NCCL's XML; what is taken can be written and taken again."""
    try:
        machine = xml.parse(data, "x")
        fabric = wiring.wire(machine).fabric
    except ValueError as error:
        _told(error)
        return
    routes = Routes(fabric)
    assert all(routes.best(rank, rank) for rank in fabric.ranks)
    again = xml.parse(xml.text(machine).encode(), "x")
    assert [cpu.affinity for cpu in again.cpus] == [cpu.affinity for cpu in machine.cpus]


def graphs(data: bytes) -> None:
    """NCCL's graph XML; what is taken can be written and taken again."""
    try:
        found = graph.parse(data)
    except ValueError as error:
        _told(error)
        return
    again = graph.parse(graph.text(found).encode())
    assert [each.channels for each in again] == [each.channels for each in found]


def trace(data: bytes) -> None:
    """Flight records, alone and compared with a second one of the same file."""
    try:
        found = flight.parse(data)
    except ValueError as error:
        _told(error)
        return
    for count in (1, 2):
        flights = list(itertools.repeat(found, count))
        assert all(sentence.isprintable() for sentence in diff.compare(flights).sentences)
        json.dumps(view.timeline(flights))


def saved(data: bytes) -> None:
    """Operands of an operation that failed; what is small is played."""
    try:
        _, failure = operands.parse(data)
    except ValueError as error:
        _told(error)
        return
    ends = [int((blocks[2] + blocks[3]).max()) for blocks in failure.blocks.values()]
    if len(failure.names) <= 8 and max([failure.plan_spec.block, *ends]) <= 4096:
        assert all(sentence.isprintable() for sentence in replay.explain(failure))


TARGETS = {target.__name__: target for target in (unauthenticated, request, viewer, topology, graphs, trace, saved)}


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
