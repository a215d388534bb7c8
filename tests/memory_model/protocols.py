"""The engine's protocols between threads and processes as programs of `machine`, with the places of their accesses.

A protocol is given the order of each of its accesses, which lets a test weaken one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.memory_model.abstract_machine import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    change,
    fence,
    load,
    read,
    sleep,
    store,
    wake,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from tests.memory_model.abstract_machine import Op

    Steps = Generator[Op, Any, None]
    Program = tuple[dict[str, Any], tuple[Callable[[], Steps], ...]]


class Access(NamedTuple):
    """An atomic access or fence: where it is in ffi/, its text, its order, and the weakest order that would do."""

    file: str
    text: str  # with {} in place of the order, where that is an argument; in CUDA code the name tells it
    order: str
    enough: str = ""  # empty: its own


class Protocol(NamedTuple):
    """Accesses by name, and the program that executes them by these orders."""

    accesses: dict[str, Access]
    program: Callable[[Mapping[str, str]], Program]


_RING, _DOORBELL = "transport/core/ring.cc", "transport/core/doorbell.cc"


def _ring(o: Mapping[str, str]) -> Program:
    """Two messages through a ring of one slot; the sender waits for the receiver where the ring is full."""
    messages, slots = 2, 1

    def sender() -> Steps:
        for position in range(messages):
            while True:
                seen = yield load("doorbell", SEQ_CST)
                head = yield load("head", o["head seen"])
                if position - head >= slots:
                    yield store("sender_waits", 1, o["waits set"])
                    head = yield load("head", o["head again"])
                if position - head < slots:
                    break
                yield load("doorbell", SEQ_CST, until=lambda value, seen=seen: value != seen)
            yield write("slot", position)
            yield store("flag", position + 1, o["flag set"])

    def receiver() -> Steps:
        for position in range(messages):
            yield load("flag", o["flag seen"], until=lambda value, position=position: value == position + 1)
            payload = yield read("slot")
            assert payload == position
            yield store("head", position + 1, o["head set"])
            waits = yield load("sender_waits", o["waits seen"])
            if waits and (yield change("sender_waits", lambda _: 0, o["waits taken"])):
                yield change("doorbell", lambda value: value + 1, SEQ_CST)

    return {"doorbell": 0, "head": 0, "sender_waits": 0, "slot": None, "flag": 0}, (sender, receiver)


RING = Protocol(
    {
        "head seen": Access(_RING, "head_seen_ = memory_.control().head.load({});\n    if", ACQUIRE),
        "waits set": Access(_RING, "memory_.control().sender_waits.store(1, {})", SEQ_CST),
        "head again": Access(_RING, "head_seen_ = memory_.control().head.load({});\n      if", SEQ_CST),
        "flag set": Access(_RING, "slot.flag.store(position + 1, {})", RELEASE),
        "flag seen": Access(_RING, "if (slot.flag.load({}) != p + 1)", ACQUIRE),
        "head set": Access(_RING, "control.head.store(head, {})", SEQ_CST),
        "waits seen": Access(_RING, "control.sender_waits.load({}) != 0", SEQ_CST),
        # It only decides which of several receiving threads rings.
        "waits taken": Access(_RING, "control.sender_waits.exchange(0, {})", SEQ_CST, enough=RELAXED),
    },
    _ring,
)


def _doorbell(o: Mapping[str, str]) -> Program:
    """A thread sleeps until there is work, and another one brings it."""

    def owner() -> Steps:
        for _ in range(3):  # an old value is read again and again in runs that tell nothing
            seen = yield load("value", o["value seen"])
            if (yield load("work", RELAXED)):
                break
            yield change("sleepers", lambda count: count + 1, o["sleeper comes"])
            yield sleep("value", seen)
            yield change("sleepers", lambda count: count - 1, o["sleeper goes"])

    def ringer() -> Steps:
        yield store("work", 1, RELAXED)
        yield change("value", lambda value: value + 1, o["value rung"])
        if (yield load("sleepers", o["sleepers seen"])):
            yield wake("value")

    return {"value": 0, "sleepers": 0, "work": 0}, (owner, ringer)


DOORBELL = Protocol(
    {
        "value seen": Access(
            "transport/core/doorbell.h", "Value() const {{ return page_->value.load({})", SEQ_CST, enough=ACQUIRE
        ),
        "sleeper comes": Access(_DOORBELL, "page_->sleepers.fetch_add(1, {})", SEQ_CST),
        "sleeper goes": Access(_DOORBELL, "page_->sleepers.fetch_sub(1, {})", SEQ_CST, enough=RELAXED),
        "value rung": Access(_DOORBELL, "page_->value.fetch_add(1, {})", SEQ_CST),
        "sleepers seen": Access(_DOORBELL, "page_->sleepers.load({}) == 0", SEQ_CST),
    },
    _doorbell,
)


def _shared_block_pool(o: Mapping[str, str]) -> Program:
    """A block goes to two readers; the writer fills it again when both have left it."""

    def writer() -> Steps:
        for turn in range(2):
            yield load("holders", RELAXED, until=lambda count: count == 0)
            before = yield change("holders", lambda count: 2 if count == 0 else None, o["taken"])
            assert before == 0
            yield write("block", turn)
            yield store("turn", turn + 1, RELEASE)  # the ring's flag

    def reader() -> Steps:
        yield load("turn", ACQUIRE, until=lambda turn: turn == 1)
        payload = yield read("block")
        assert payload == 0
        yield change("holders", lambda count: count - 1, o["left"])

    return {"holders": 0, "block": None, "turn": 0}, (writer, reader, reader)


BLOCK_POOL = Protocol(
    {
        "taken": Access(
            "transport/core/shared_block_pool.h", "compare_exchange_strong(none, holders, {})", ACQ_REL, enough=ACQUIRE
        ),
        "left": Access("transport/core/shared_block_pool.h", "fetch_sub(holders, {})", ACQ_REL, enough=RELEASE),
    },
    _shared_block_pool,
)


def _lane(o: Mapping[str, str]) -> Program:
    """Two workers come to a lane; only one at a time executes it."""

    def worker() -> Steps:
        for _ in range(2):
            if (yield load("busy", o["looked at"])) or (yield change("busy", lambda _: True, o["entered"])):
                continue
            steps = yield read("lane")
            yield write("lane", steps + 1)
            yield store("busy", False, o["left"])

    return {"busy": False, "lane": 0}, (worker, worker)


LANE = Protocol(
    {
        "looked at": Access("engine/engine.cc", "if (lane->busy.load({}) ||", RELAXED),
        "entered": Access("engine/engine.cc", "lane->busy.exchange(true, {})) continue", ACQUIRE),
        "left": Access("engine/engine.cc", "kLaneBudget);\n    lane->busy.store(false, {})", RELEASE),
    },
    _lane,
)


def _busy_pollers(o: Mapping[str, str]) -> Program:
    """The poller of sockets stops watching while another thread polls them, and that thread is the last one to."""

    def polling() -> Steps:
        before = yield change("count", lambda count: count - 1, o["count lowered"])
        assert before == 1
        if (yield load("disabled", o["disabled seen"])) and (
            yield change("disabled", lambda _: False, o["disabled taken"])
        ):
            yield store("enabled", True, RELAXED)

    def poller() -> Steps:
        yield change("disabled", lambda _: True, o["disabled set"])
        if (yield load("count", o["count seen"])) > 0:
            yield load("enabled", RELAXED, until=bool)

    return {"count": 1, "disabled": False, "enabled": False}, (polling, poller)


_POLLERS = "transport/core/busy_pollers.cc"
BUSY_POLLERS = Protocol(
    {
        "count lowered": Access(_POLLERS, "count_.fetch_sub(1, {})", SEQ_CST),
        "disabled seen": Access(_POLLERS, "!disabled_.load({})", SEQ_CST),
        # It only decides which of several threads enables events.
        "disabled taken": Access(_POLLERS, "disabled_.exchange(false, {})", SEQ_CST, enough=RELAXED),
        "disabled set": Access(_POLLERS, "disabled_.exchange(true, {})", SEQ_CST),
        "count seen": Access(_POLLERS, "return count_.load({}) > 0", SEQ_CST),
    },
    _busy_pollers,
)


def _recorder(o: Mapping[str, str]) -> Program:
    """A record is written over the one before it while another process reads the file."""

    def writer() -> Steps:
        yield store("number", 0, o["number taken back"])
        yield fence(o["fence"])
        yield store("key", 2, RELAXED)
        yield store("number", 2, o["number set"])

    def reader() -> Steps:
        number = yield load("number", ACQUIRE)
        key = yield load("key", RELAXED)
        yield fence(ACQUIRE)
        if number and number == (yield load("number", RELAXED)):
            assert key == number, f"record {number} has the key of record {key}"

    return {"number": 1, "key": 1}, (writer, reader)


_RECORDER = "engine/records/recorder.cc"
RECORDER = Protocol(
    {
        "number taken back": Access(_RECORDER, "mark.store(0, {})", RELAXED),
        "fence": Access(_RECORDER, "std::atomic_thread_fence({})", RELEASE),
        "number set": Access(_RECORDER, "s.number.store(number, {})", RELEASE),
    },
    _recorder,
)


def _gpu_barrier(o: Mapping[str, str]) -> Program:
    """A GPU's lane fails and gives its memory back to the program, while a member may be about to write there."""
    failed_mark = 2

    def member() -> Steps:
        yield store("begun", True, RELAXED)
        yield fence(o["fence after begun"])
        if (yield load("failing end", RELAXED)) != failed_mark:
            yield write("memory", "the member's")
        yield store("end", 1, o["end set"])

    def failing() -> Steps:
        yield store("failing end", failed_mark, RELEASE)
        yield fence(o["fence after the mark"])
        if (yield load("begun", RELAXED)):
            yield load("end", o["end seen"], until=bool)
        yield write("memory", "the program's")

    return {"begun": False, "end": 0, "failing end": 0, "memory": None}, (member, failing)


_BARRIER = "cuda/device/epoch_barrier.h"
GPU_BARRIER = Protocol(
    {
        "fence after begun": Access(_BARRIER, "if (!args.failure.trap) FenceAll();", SEQ_CST),
        "end set": Access(_BARRIER, "StoreRelease(&Theirs(lane, m).end,", RELEASE),
        "fence after the mark": Access(_BARRIER, "if (failed) FenceAll();", SEQ_CST),
        "end seen": Access(_BARRIER, "LoadAcquire(&barrier.end) < lane.epoch", ACQUIRE),
    },
    _gpu_barrier,
)

PROTOCOLS = {
    "ring": RING,
    "doorbell": DOORBELL,
    "block pool": BLOCK_POOL,
    "lane": LANE,
    "busy pollers": BUSY_POLLERS,
    "flight recorder": RECORDER,
    "GPU barrier": GPU_BARRIER,
}
