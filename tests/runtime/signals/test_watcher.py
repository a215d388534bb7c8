"""Which signals the watcher is told of, and which insist on an earlier one: those before the main thread was back."""

from __future__ import annotations

import signal
import sys
import types

import pytest

from jaxring.runtime import interruption
from tests import starting
from tests.stress.stress_jobs import environment


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


# Who handles SIGINT: the library that contains its handler, by sigaction and dladdr of the C library.
HANDLER = """
import ctypes, pathlib, signal
import jax, jaxring, numpy as np
from jax.sharding import PartitionSpec as P

def library():
    c, action, about = ctypes.CDLL(None), (ctypes.c_void_p * 64)(), (ctypes.c_char_p * 4)()
    assert c.sigaction(signal.SIGINT, None, action) == 0
    assert c.dladdr(ctypes.c_void_p(action[0]), about) != 0
    return pathlib.Path(about[0].decode()).name

print(library())
signal.signal(signal.SIGINT, signal.default_int_handler)
print(library())
mesh = jax.make_mesh((2,), ("x",))
call = jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
jax.jit(call).lower(jax.device_put(np.arange(2.0), jax.NamedSharding(mesh, P("x")))).compile()
print(library())
"""


def test_a_handler_of_the_program_is_watched_from_the_first_call_on():
    # A job may be interrupted while its first call is planned, in less time than one of the engine's ticks.
    env = environment(2)
    done = starting.run([sys.executable, "-c", HANDLER], env=env, capture_output=True, text=True, check=False)
    at_first, replaced, compiled = done.stdout.split() or [done.stderr]
    assert at_first == compiled
    assert compiled.startswith("_native"), compiled
    assert not replaced.startswith("_native")
