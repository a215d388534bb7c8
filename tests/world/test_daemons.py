"""Threads for which a process waits at its end."""

from __future__ import annotations

import threading

import pytest

from jaxring.world import daemons


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            daemons.start("never", print)
    daemons.join(60)


def test_a_thread_that_runs_is_waited_for():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert go_on.wait(60)
        done.append(True)

    daemons.start("works", work)
    assert begun.wait(60)
    go_on.set()
    daemons.join(60)
    assert done
