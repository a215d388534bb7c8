"""What an old epoch of a job may still do to the engine: nothing."""

from __future__ import annotations

import inspect
import os
import threading
import time

import pytest

import jaxring._native as _native
from jaxring.errors import JoinError
from jaxring.world.closable import ClosableNative
from jaxring.world.native import Native

TAKE_A_DESCRIPTOR = ("control", "connector_finish", "path_resume", "link_take_over")


def test_a_closed_handle_passes_nothing_on_and_keeps_no_descriptor():
    reached = []

    class Fake:
        def __getattr__(self, name):
            return lambda *arguments, **named: reached.append(name)

    handle = ClosableNative(Fake())
    handle.tls_load()
    handle.close(time.monotonic() + 60)
    for call in TAKE_A_DESCRIPTOR:
        read, write = os.pipe()
        with pytest.raises(JoinError, match="rebuilt since"):
            getattr(handle, call)(1, fd=write)
        assert os.read(read, 1) == b""  # the other end is closed
        os.close(read)
    assert reached == ["tls_load"]


def test_functions_that_are_spared_are_passed_on_until_the_next_call():
    class Fake:
        def __getattr__(self, name):
            return lambda *_: name

    handle = ClosableNative(Fake())
    handle.close(time.monotonic() + 60, spare=("path",))
    assert (handle.path_drain(), handle.paths_lost()) == ("path_drain", "paths_lost")
    with pytest.raises(JoinError, match="rebuilt since"):
        handle.connector_prepare()
    handle.close(time.monotonic() + 60)
    with pytest.raises(JoinError, match="rebuilt since"):
        handle.path_drain()


def test_a_spared_function_that_runs_is_not_waited_for_before_the_next_call():
    running, over = threading.Event(), threading.Event()

    class Slow:
        def paths_lost(self):
            running.set()
            assert over.wait(60)

    handle = ClosableNative(Slow())
    thread = threading.Thread(target=handle.paths_lost)
    thread.start()
    assert running.wait(60)
    handle.close(time.monotonic(), spare=("path",))
    with pytest.raises(JoinError, match="still being made"):
        handle.close(time.monotonic())
    over.set()
    handle.close(time.monotonic() + 60)
    thread.join()


def test_descriptors_go_by_name():
    """Every function that takes one has it as a keyword, in the interface and in the engine's binding."""
    taking = {
        name
        for name, function in vars(Native).items()
        if inspect.isfunction(function) and "fd" in inspect.signature(function).parameters
    }
    assert taking == set(TAKE_A_DESCRIPTOR)
    for name in taking:
        assert inspect.signature(getattr(Native, name)).parameters["fd"].kind is inspect.Parameter.KEYWORD_ONLY
        assert "fd: int" in getattr(_native, name).__doc__


def test_closing_waits_for_calls_that_are_running():
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        def tls_load(self):
            inside.set()
            assert leave.wait(60)

    handle = ClosableNative(Slow())
    caller = threading.Thread(target=handle.tls_load)
    caller.start()
    assert inside.wait(60)
    with pytest.raises(JoinError, match="still being made"):
        handle.close(time.monotonic() + 0.05)
    leave.set()
    handle.close(time.monotonic() + 60)
    caller.join()
