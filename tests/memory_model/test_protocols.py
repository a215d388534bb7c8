"""The engine's protocols are right under C++'s memory model, and each order that they name is needed."""

from __future__ import annotations

import pathlib

import pytest

from tests.memory_model.abstract_machine import ACQ_REL, ACQUIRE, RELAXED, RELEASE, SEQ_CST, Found, explore
from tests.memory_model.protocols import PROTOCOLS

FFI = pathlib.Path(__file__).parents[2] / "ffi"
EACH = pytest.mark.parametrize("name", PROTOCOLS)


def orders(protocol, **changed):
    return {name: access.order for name, access in protocol.accesses.items()} | changed


def weaker(access):
    """The orders next below the one that is enough."""
    order = access.enough or access.order
    text = access.text
    if order == SEQ_CST:
        return [RELEASE if ".store(" in text else ACQUIRE if ".load(" in text else ACQ_REL]
    return {ACQ_REL: [ACQUIRE, RELEASE], ACQUIRE: [RELAXED], RELEASE: [RELAXED], RELAXED: []}[order]


@EACH
def test_right(name):
    protocol = PROTOCOLS[name]
    initial, threads = protocol.program(orders(protocol))
    assert explore(initial, *threads) > 10


@EACH
def test_right_by_the_weakest_orders(name):
    protocol = PROTOCOLS[name]
    weakest = {key: access.enough or access.order for key, access in protocol.accesses.items()}
    initial, threads = protocol.program(weakest)
    explore(initial, *threads)


@pytest.mark.parametrize(
    ("name", "access", "order"),
    [
        pytest.param(name, key, order, id=f"{name}: {key} {order}")
        for name, protocol in PROTOCOLS.items()
        for key, access in protocol.accesses.items()
        for order in weaker(access)
    ],
)
def test_each_order_is_needed(name, access, order):
    protocol = PROTOCOLS[name]
    initial, threads = protocol.program(orders(protocol, **{access: order}))
    with pytest.raises(Found):
        explore(initial, *threads)


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, protocol in PROTOCOLS.items() for key in protocol.accesses]
)
def test_the_source_has_this_order(name, key):
    """Fails when the source changes: then the protocol has to be changed, too."""
    access = PROTOCOLS[name].accesses[key]
    source = (FFI / access.file).read_text(encoding="utf-8")
    text = access.text.format(f"std::memory_order_{access.order}")
    assert source.count(text) == 1, f"ffi/{access.file} has {source.count(text)} times: {text}"
