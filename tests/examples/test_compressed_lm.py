"""The example with compressed gradients, cut short, in several processes."""

from __future__ import annotations

import sysconfig

import pytest

from tests import ROOT, starting

pytest.importorskip("optax")  # it comes with the extra "test"

COMMAND = [f"{sysconfig.get_path('scripts')}/jaxring", "run", "-n", "2", "--devices-per-process", "2"]
TINY = ["--steps", "8", "--width", "32", "--layers", "1"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_compressed_lm():
    done = starting.run(
        [*COMMAND, "examples/compressed_lm.py", *TINY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "int8, error feedback: first loss" in done.stdout
