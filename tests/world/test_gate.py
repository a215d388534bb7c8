"""What an old generation of a job may still do to the engine: nothing."""

from __future__ import annotations

import os
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world.gate import Gate


def test_a_closed_gate_lets_nothing_through_and_keeps_no_descriptor():
    reached = []

    class Native:
        def __getattr__(self, name):
            return lambda *arguments: reached.append(name)

    gate = Gate(Native())
    gate.bell_fd()
    gate.close(time.monotonic() + 60)
    for call, position in (("tcp_attach", 2), ("control", 1), ("plugin_finish", 3), ("verbs_finish", 3)):
        read, write = os.pipe()
        arguments = [0] * position + [write]
        with pytest.raises(JoinError, match="rebuilt since"):
            getattr(gate, call)(*arguments)
        assert os.read(read, 1) == b""  # the other end is closed
        os.close(read)
    assert reached == ["bell_fd"]


def test_closing_waits_for_those_inside():
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        def bell_fd(self):
            inside.set()
            assert leave.wait(60)

    gate = Gate(Slow())
    caller = threading.Thread(target=gate.bell_fd)
    caller.start()
    assert inside.wait(60)
    with pytest.raises(JoinError, match="has not come to an end"):
        gate.close(time.monotonic() + 0.05)
    leave.set()
    gate.close(time.monotonic() + 60)
    caller.join()
