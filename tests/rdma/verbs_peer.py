"""A peer of our verbs endpoint that is not ours: queue pairs of pyverbs, which speak its protocol (pyverbs_link.py).

Run in the guest of test-rdma by the Python that pyverbs came for: `verbs_peer.py VERBS_ECHO`. That program is
ffi/tests/transport/rdma/verbs_echo.cc, which sends back what it receives.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import subprocess
import sys
import time
from typing import Self

from pyverbs import enums
from pyverbs.device import Context
from pyverbs.wr import SGE

from tests.rdma.pyverbs_link import CREDIT, OFFER, POSITIONS, PROTOCOL_SHIFT, SLOT_BYTES, Link, Ring

DEVICE = "rxe1"  # the other end of the cable
LIMIT = 60.0


class Session:
    """A process of ours, connected."""

    def __init__(self, echo: str, queue_pairs: int) -> None:
        (self.out_word, theirs), (self.in_word, others) = socket.socketpair(), socket.socketpair()
        environment = os.environ | {"JAXRING_TEST_VERBS": "rxe0@1", "JAXRING_TEST_VERBS_QPS": str(queue_pairs)}
        descriptors = (theirs.fileno(), others.fileno())
        self.process = subprocess.Popen(
            [echo, str(SLOT_BYTES), *map(str, descriptors)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env=environment,
        )
        theirs.close()
        others.close()
        self.text = b""
        self.context = Context(name=DEVICE)
        offers = [OFFER.unpack(bytes.fromhex(self.line(word))) for word in ("recv ", "send ")]
        # Out to their receiving link, in from their sending one.
        self.out, self.into = (Link(self.context, offer, 1000 + i) for i, offer in enumerate(offers))
        for link, offer in zip((self.out, self.into), offers, strict=True):
            link.connect()
            self.process.stdin.write(link.offer(offer).encode() + b"\n")
        self.process.stdin.flush()
        self.line("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        try:
            code = self.process.wait(LIMIT)
        finally:
            self.process.kill()
        assert code == 0, code

    def line(self, begin: str) -> str:
        """The rest of the next line that begins so."""
        deadline = time.monotonic() + LIMIT
        while True:
            while b"\n" not in self.text:
                ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
                assert ready, f"nothing was said that begins with {begin!r}"
                read = os.read(self.process.stdout.fileno(), 65536)
                assert read, f"it ended before it said {begin!r}"
                self.text += read
            line, _, self.text = self.text.partition(b"\n")
            if line.startswith(begin.encode()):
                return line.decode()[len(begin) :]


def payload(number: int, protocol: int, ring: Ring) -> bytes:
    size = ring.payload_bytes if number % 7 == 0 else number * 997 % (ring.payload_bytes + 1)
    return bytes((protocol * 101 + number * 31 + i * 7) % 256 for i in range(size))


def there_and_back(echo: str, queue_pairs: int) -> None:
    """Messages of all sizes by both rings, many times around; each comes back once, in its ring's order, unchanged."""
    with Session(echo, queue_pairs) as session:
        counts = (160, 48)
        expected = [[payload(n, p, session.out.rings[p]) for n in range(counts[p])] for p in (0, 1)]
        back: list[dict[int, bytes]] = [{}, {}]
        deadline = time.monotonic() + LIMIT
        while [len(received) for received in back] != list(counts):
            assert time.monotonic() < deadline, [len(received) for received in back]
            for protocol in (0, 1):
                ring = session.out.rings[protocol]
                while ring.next < counts[protocol] and session.out.may_write(protocol):
                    session.out.write(protocol, ring.next, expected[protocol][ring.next], ring.next % queue_pairs)
            for notice in session.out.poll():
                assert notice & CREDIT, hex(notice)
                ring = session.out.rings[notice >> PROTOCOL_SHIFT & 1]
                assert ring.credited < notice & POSITIONS <= ring.next
                ring.credited = notice & POSITIONS
            for notice in session.into.poll():
                protocol, header, data = session.into.take(notice)
                assert header[1:5] == (1, 2, 3, 4)
                assert header[6:] == (77, 0)
                assert header[0] not in back[protocol]
                assert queue_pairs > 1 or header[0] == len(back[protocol])
                back[protocol][header[0]] = data
        for protocol in (0, 1):
            assert [back[protocol][n] for n in range(counts[protocol])] == expected[protocol]
        # What has not come stays away.
        time.sleep(0.2)
        assert session.into.poll() == []


def in_good_order(echo: str) -> None:
    """A peer that says goodbye and goes."""
    with Session(echo, 1) as session:
        for word in (session.out_word, session.in_word):
            word.sendall(b"b")
            word.close()
        assert session.line("recv ended: ") == "its process ended"
        assert session.line("send ended: ") == "its process ended"


def bad_notice(echo: str, which: str, notice: int) -> None:
    """A notice that makes no sense ends the link, and the peer is told why."""
    with Session(echo, 1) as session:
        link, word = (session.out, session.out_word) if which == "recv" else (session.into, session.in_word)
        link.notify(notice)
        said = "the peer sent a notice that no jaxring process of this version sends"
        assert session.line(f"{which} ended: ") == said
        word.settimeout(LIMIT)
        assert word.recv(4096) == b"e" + said.encode()
        assert word.recv(1) == b""


def outside(echo: str) -> None:
    """A write behind the registered memory is refused by the device, and ends the link at both ends."""
    with Session(echo, 1) as session:
        link = session.out
        sge = SGE(link.memory.buf, 64, link.memory.lkey)
        link.post(0, enums.IBV_WR_RDMA_WRITE, [sge], 0, link.address + link.memory.length)
        deadline = time.monotonic() + LIMIT
        count, completions = link.cq.poll(1)
        while count == 0:
            assert time.monotonic() < deadline
            count, completions = link.cq.poll(1)
        assert completions[0].status == enums.IBV_WC_REM_ACCESS_ERR, completions[0].status
        said = session.line("recv ended: ")
        assert "rxe0 port 1" in said, said


CHECKS = {
    "there and back": functools.partial(there_and_back, queue_pairs=1),
    "there and back, three queue pairs": functools.partial(there_and_back, queue_pairs=3),
    "goodbye": in_good_order,
    "a credit for what was not sent": functools.partial(bad_notice, which="send", notice=CREDIT | 5),
    "a message where a credit belongs": functools.partial(bad_notice, which="send", notice=0),
    "a message beyond the ring": functools.partial(bad_notice, which="recv", notice=32),
    "a credit where a message belongs": functools.partial(bad_notice, which="recv", notice=CREDIT),
    "a write outside": outside,
}

if __name__ == "__main__":
    for name, check in CHECKS.items():
        began = time.monotonic()
        check(sys.argv[1])
        print(f"{name}: {time.monotonic() - began:.2f} s", flush=True)
