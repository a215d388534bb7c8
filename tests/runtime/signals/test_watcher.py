"""Which signals count as insisting on an earlier one: those that come before the main thread was back."""

from __future__ import annotations

import signal
import types

import pytest

from jaxring.runtime import interruption


class Native:
    """What the native part says at each look.

    (signal, whether the main thread had been back before it, whether it is back after it, the signal's handler).
    """

    def __init__(self, looks):
        self.looks, self.watcher, self.back, self.interrupted = iter(looks), None, False, []

    def await_signal(self, _timeout):
        number, before, self.back, handler = next(self.looks, (0, True, True, None))
        if handler is None:
            self.watcher._stopped.set()
        else:
            signal.signal(signal.SIGINT, handler)
        return types.SimpleNamespace(number=number, main_thread_is_back=before)

    def main_thread_is_back(self):
        return self.back

    def counters(self):
        return {"in_flight": 1}

    def interrupt(self, why, _age):
        self.interrupted.append(why)


def own(*_):
    """The program's handler."""


@pytest.mark.parametrize(
    ("back", "before_next", "first", "interrupts"),
    [
        (True, False, signal.default_int_handler, False),  # handled, and something else is in flight now
        (False, True, own, False),  # the same, but the next one came before this thread had looked
        (False, False, own, True),
    ],
)
def test_a_signal_after_one_that_was_handled_is_a_first_one(monkeypatch, back, before_next, first, interrupts):
    native = Native(
        [
            (signal.SIGINT, False, back, first),
            (signal.SIGINT, before_next, False, own),
            (0, False, False, own),
        ]
    )
    native.watcher = interruption.Watcher(types.SimpleNamespace(waits=types.SimpleNamespace(end=lambda why: None)))
    monkeypatch.setattr(interruption, "_native", native)
    monkeypatch.setattr(interruption, "GRACE_S", 0.0)
    before = signal.getsignal(signal.SIGINT)
    try:
        native.watcher._watch()
    finally:
        signal.signal(signal.SIGINT, before)
    assert bool(native.interrupted) is interrupts
