"""A fixture for tests of the bench, which starts the processes that it measures."""

from __future__ import annotations

import subprocess

import pytest

from tests import starting


@pytest.fixture(autouse=True)
def _forks(monkeypatch):
    """They are forks."""
    monkeypatch.setattr(subprocess, "Popen", starting.Popen)
