"""The machine on the classic litmus tests: what C++ allows happens, and what it forbids does not."""

from __future__ import annotations

import pytest

from tests.memory_model.abstract_machine import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Found,
    change,
    explore,
    fence,
    load,
    read,
    sleep,
    store,
    wake,
    write,
)


def store_buffering(order_of_stores, order_of_loads, between=()):
    """Both threads store, then load what the other stores; both must not find the old value."""

    def side(mine, other):
        def run():
            yield store(mine, 1, order_of_stores)
            for order in between:
                yield fence(order)
            value = yield load(other, order_of_loads)
            yield store(f"{mine} found", value, SEQ_CST)

        return run

    def judge():
        first = yield load("x found", SEQ_CST, until=lambda value: value is not None)
        second = yield load("y found", SEQ_CST, until=lambda value: value is not None)
        assert first or second

    explore({"x": 0, "y": 0, "x found": None, "y found": None}, side("x", "y"), side("y", "x"), judge)


@pytest.mark.parametrize(("stores", "loads"), [(RELEASE, ACQUIRE), (SEQ_CST, ACQUIRE), (RELEASE, SEQ_CST)])
def test_store_buffering_is_seen(stores, loads):
    with pytest.raises(Found, match="assertion failed"):
        store_buffering(stores, loads)


def test_store_buffering_is_forbidden_by_seq_cst():
    store_buffering(SEQ_CST, SEQ_CST)
    store_buffering(RELAXED, RELAXED, between=(SEQ_CST,))
    with pytest.raises(Found):
        store_buffering(RELAXED, RELAXED, between=(ACQ_REL,))


def message_passing(store_order, load_order, fences=False):
    """A payload written before a flag must be there for the thread that finds the flag."""

    def writer():
        yield write("payload", 7)
        if fences:
            yield fence(RELEASE)
        yield store("flag", 1, store_order)

    def reader():
        yield load("flag", load_order, until=bool)
        if fences:
            yield fence(ACQUIRE)
        assert (yield read("payload")) == 7

    return explore({"payload": 0, "flag": 0}, writer, reader)


def test_message_passing():
    assert message_passing(RELEASE, ACQUIRE) > 3
    assert message_passing(RELAXED, RELAXED, fences=True) > 3
    for orders in ((RELAXED, ACQUIRE), (RELEASE, RELAXED)):
        with pytest.raises(Found, match="race"):
            message_passing(*orders)


def test_a_release_sequence_goes_on_through_read_modify_writes():
    def writer():
        yield write("payload", 7)
        yield store("count", 1, RELEASE)

    def another():
        yield load("count", RELAXED, until=lambda value: value == 1)
        yield change("count", lambda value: value + 1, RELAXED)

    def reader():
        yield load("count", ACQUIRE, until=lambda value: value == 2)
        assert (yield read("payload")) == 7

    explore({"payload": 0, "count": 0}, writer, another, reader)


def test_reads_of_one_place_never_go_back():
    def writer():
        yield store("x", 1, RELAXED)
        yield store("x", 2, RELAXED)

    def reader():
        first = yield load("x", RELAXED)
        second = yield load("x", RELAXED)
        assert second >= first

    explore({"x": 0}, writer, reader)


def test_a_write_races_with_a_read_that_it_does_not_know():
    def reader():
        yield read("payload")
        yield store("done", 1, RELAXED)

    def writer():
        yield load("done", ACQUIRE, until=bool)
        yield write("payload", 1)

    with pytest.raises(Found, match="race"):
        explore({"payload": 0, "done": 0}, reader, writer)


def test_a_lost_wake_up_is_found():
    def waiter():
        if not (yield load("work", SEQ_CST)):
            yield sleep("doorbell", 0)

    def bringer():
        yield store("work", 1, SEQ_CST)
        yield wake("doorbell")

    with pytest.raises(Found, match="wait for ever"):
        explore({"work": 0, "doorbell": 0}, waiter, bringer)
