"""The end of a process: what it says of it, and the threads for which it waits."""

from __future__ import annotations

import sys
import threading

import pytest

from jaxring.runtime import ending
from jaxring.runtime.reporting.record_files import hint
from jaxring.world import daemons


@pytest.mark.parametrize(("code", "said"), [(None, 0), (0, 0), (3, 3), (True, 1), ("no data", 1), (256 + 7, 7)])
def test_the_exit_code_is_pythons(monkeypatch, code, said):
    monkeypatch.setattr(ending, "_code", None)
    assert ending.orderly() == " without an uncaught exception"
    ending.exits(code)
    assert ending.orderly() == f" (exit code {said})"


def test_an_exception_is_told_as_one_clause(monkeypatch):
    monkeypatch.delattr(sys, "last_type", raising=False)
    assert ending.uncaught("") == ""

    def said(error):
        monkeypatch.setattr(sys, "last_type", type(error), raising=False)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        return ending.uncaught(hint(""))

    assert said(ValueError("my own bug.")) == " after an uncaught ValueError: my own bug"
    assert said(KeyboardInterrupt()) == " after an uncaught KeyboardInterrupt"
    # Of an error that names another process, what tells how to look at this one's record is left out.
    nested = said(RuntimeError(f"UNAVAILABLE: lost rank 2: its process ended.\nIts log says why. {hint('')}"))
    assert nested == " after an uncaught RuntimeError: UNAVAILABLE: lost rank 2: its process ended. Its log says why"
    assert said(ValueError("long " * 200)).endswith("long ...")


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            daemons.start("never", print)
    daemons.join(60)


def test_a_thread_that_runs_is_waited_for(monkeypatch):
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert go_on.wait(60)
        done.append(True)

    join = threading.Thread.join

    def joined(thread, timeout=None):
        go_on.set()  # it cannot have ended before
        join(thread, timeout)

    daemons.start("works", work)
    assert begun.wait(60)
    monkeypatch.setattr(threading.Thread, "join", joined)
    daemons.join(60)
    assert done
