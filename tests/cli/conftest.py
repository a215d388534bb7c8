"""Fixtures for tests of the command line: `jaxring` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import starting


@pytest.fixture
def start(tmp_path):
    """start(script_text, *options, arguments=(), env={}) -> Popen of `jaxring run`; its group is ended afterwards."""
    started = []

    def begin(text, *options, arguments=(), env=None):
        script = tmp_path / "script.py"
        script.write_text(text, encoding="utf-8")
        base = {k: v for k, v in os.environ.items() if not k.startswith(("JAXRING_", "JAX_", "PJRT_"))}
        child = starting.Popen(
            [sys.executable, "-m", "jaxring.cli", "run", *options, str(script), *arguments],
            env=base | {"SCRATCH": str(tmp_path)} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture
def run(start):
    """Like `start`, but waits: (exit code, stdout lines, stderr)."""

    def complete(*args, **kwargs):
        child = start(*args, **kwargs)
        out, err = child.communicate(timeout=120)
        return child.returncode, out.splitlines(), err

    return complete
