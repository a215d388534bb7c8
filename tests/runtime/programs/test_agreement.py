"""How two processes find out that their programs differ, without processes: their control messages are carried here."""

from __future__ import annotations

import itertools
import json

import pytest

from jaxring.errors import JoinError
from jaxring.runtime import programs
from jaxring.runtime.agreement import CROSSED_S, Agreement, Use


class Store:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        if key in self.values:
            raise JoinError("set already")
        self.values[key] = value

    def replace(self, key, value):
        self.values[key] = value

    def list(self, prefix):
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

    def get(self, key, timeout_s):
        if key not in self.values:
            raise JoinError("not there")
        return self.values[key]


class ProgramLatch:
    def __init__(self, missing):
        self.missing = set(missing)

    def confirm(self, process):
        self.missing.discard(process)


class Side:
    """A process with its agreement, in place of its engine."""

    def __init__(self, pair, process):
        self.pair, self.process = pair, process
        self.agreement = Agreement(self, lambda: pair.store, process, lambda: pair.now)
        self.outbox, self.failed, self.running = [], {}, set()

    def send_control_message(self, process, text):
        assert process == 1 - self.process
        assert len(text.encode()) <= 3072
        self.outbox.append(text)

    def in_flight(self, key):
        return key in self.running

    def fail_plan(self, key, code, message):
        self.failed[key] = message
        self.running.discard(key)

    def plan(self, key, *programs):
        latches = []
        names = {p: f"rank {p} (process {p} on h)" for p in (0, 1)}
        use = Use(key, f"call {key}", list(programs), names)
        self.agreement.begin(
            use, {1 - self.process}, lambda missing: latches.append(ProgramLatch(missing)) or latches[0]
        )
        self.running.add(key)
        return latches[0] if latches else ProgramLatch(())


class Pair:
    def __init__(self):
        self.store, self.now = Store(), 100.0
        self.sides = [Side(self, 0), Side(self, 1)]

    def wait(self, seconds):
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            for side in self.sides:
                self.deliver()
                side.agreement.settle()

    def deliver(self):
        while any(side.outbox for side in self.sides):
            for side in self.sides:
                if side.outbox:
                    self.sides[1 - side.process].agreement.receive(side.process, side.outbox.pop(0))


def program(*entries, main=True):
    made = programs.Listing("jit_" + entries[0], main)
    for entry in entries:
        made.add(entry)
    return made


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(programs, "known", lambda digests: False)
    return Pair()


@pytest.mark.parametrize("order", list(itertools.permutations(((0, 1), (0, 2), (1, 1), (1, 2)))))
def test_the_same_program_passes(pair, order):
    """Its calls may be planned in any order; none waits when both have planned it."""
    latches = []
    for process, key in order:
        latches.append(pair.sides[process].plan(key, program("a", "b")))
        pair.wait(2 * CROSSED_S) if not latches[0].missing else pair.deliver()
    assert [latch.missing for latch in latches] == [set()] * 4
    pair.wait(10)
    assert not pair.sides[0].failed
    assert not pair.sides[1].failed


def test_a_call_in_different_programs(pair):
    latches = [pair.sides[0].plan(7, program("a", "b")), pair.sides[1].plan(7, program("a"))]
    pair.wait(1)
    assert [latch.missing for latch in latches] == [{1}, {0}]
    for side in pair.sides:
        text = side.failed[7]
        assert "different programs. They differ from collective 2 on" in text
        assert "rank 0 (process 0 on h) runs 'jit_a', where it is b" in text
        assert "rank 1 (process 1 on h) runs 'jit_a', which has no more than 1" in text
    # What comes after that goes on.
    assert pair.sides[0].plan(8, program("c")).missing
    pair.deliver()
    assert not pair.sides[1].plan(8, program("c")).missing
    pair.wait(10)
    assert [list(side.failed) for side in pair.sides] == [[7], [7]]


def test_programs_that_begin_alike(pair):
    """A call that several of a process's programs hold passes where one of them is the other side's."""
    assert pair.sides[0].plan(7, program("a", "b"), program("a", "c")).missing
    pair.deliver()
    assert not pair.sides[1].plan(7, program("a", "c")).missing


def test_waiting_for_each_other_in_programs_that_the_other_does_not_know(pair):
    pair.sides[0].plan(1, program("a"))
    pair.sides[0].plan(2, program("a"))
    pair.sides[1].plan(3, program("b"))
    pair.wait(CROSSED_S - 0.5)
    assert not pair.sides[0].failed
    assert not pair.sides[1].failed
    pair.wait(2)
    assert set(pair.sides[0].failed) == {1, 2}
    assert set(pair.sides[1].failed) == {3}
    for text in (pair.sides[0].failed[1], pair.sides[1].failed[3]):
        assert "process 0 on h) runs 'jit_a', where it is a" in text
        assert "process 1 on h) runs 'jit_b', where it is b" in text


@pytest.mark.parametrize("reason", ["thread", "known", "comes", "done", "deserialised"])
def test_waiting_for_each_other_that_may_end_well(pair, monkeypatch, reason):
    own = program("a")
    pair.sides[0].plan(1, *([] if reason == "deserialised" else [own]))
    pair.sides[1].plan(2, program("b", main=reason != "thread"))
    if reason == "known":  # lowered by one of them already
        monkeypatch.setattr(programs, "known", lambda digests: own.digest in digests)
    if reason == "comes":
        pair.wait(1)
        pair.sides[1].plan(1, own)
    if reason == "done":
        pair.sides[1].running.clear()
    pair.wait(20)
    assert not pair.sides[0].failed
    assert not pair.sides[1].failed


def test_a_program_that_one_side_deserialised(pair):
    latches = [pair.sides[0].plan(1), pair.sides[1].plan(1, program("a"))]
    pair.deliver()
    assert not any(latch.missing for latch in latches)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"key": "x"}', '{"differs": "1"}', '{"key": "1", "digests": 3}', "3"]
)
def test_messages_that_cannot_be_read(pair, text):
    pair.sides[0].agreement.receive(1, text)
    pair.wait(5)


def test_without_the_store_both_calls_are_named(pair):
    pair.store.get = lambda key, timeout_s: (_ for _ in ()).throw(JoinError("gone"))
    pair.sides[0].plan(1, program("a"))
    pair.sides[1].plan(2, program("b"))
    pair.wait(5)
    assert "rank 0 (process 0 on h) is in call 1, rank 1 (process 1 on h) in call 2" in pair.sides[0].failed[1]


def test_long_calls_fit_a_message(pair):
    side = pair.sides[0]
    side.plan(1, program("a"))
    side.agreement.begin(Use(2, "\N{GRINNING FACE}" * 5000, [program("a")], {0: "", 1: ""}), {1}, None)
    assert all(json.loads(text)["what"] for text in side.outbox)


def test_who_cannot_connect_leaves_word_in_the_store(pair):
    """A word counts once, and not any more when there is a plan after all."""
    pair.sides[0].agreement.failed(1, "no way to process 1")
    pair.sides[1].plan(1, program("a"))
    pair.sides[1].outbox.clear()  # there is no connection
    pair.wait(15)
    assert pair.sides[1].failed.pop(1) == "no way to process 1"
    pair.sides[1].running.add(1)  # the next execution
    pair.wait(15)
    assert not pair.sides[1].failed
    pair.sides[0].agreement.failed(1, "no way to process 1")
    pair.wait(15)
    assert pair.sides[1].failed.pop(1) == "no way to process 1"
    pair.sides[0].agreement.failed(1, "no way to process 1")
    pair.sides[0].agreement.planned(1)
    pair.sides[1].running.add(1)
    pair.wait(15)
    assert not pair.sides[1].failed
