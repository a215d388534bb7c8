"""What a process says of its own end."""

from __future__ import annotations

import sys

import pytest

from jaxring.runtime import ending
from jaxring.runtime.reporting.record_files import hint


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
