"""The example that loses a process while it trains, goes on without it, with it again and with one more, cut short."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.collectives.cases.coll_jobs import run_job

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "recover_lm.py"


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_last_loss_is_that_of_an_undisturbed_run():
    size = ("--steps", "8", "--width", "32", "--rows", "12")
    restart = ("--restart", "1", "--restart-delay", "0")
    code, output = run_job(SCRIPT, 3, 1, *size, options=restart, timeout_s=150)
    assert code == 0, output[-6000:]
    assert output.count("process 2 was ended by SIGKILL; it is started again") == 1, output
    assert "epoch 1: processes (0, 1) go on" in output, output
    assert "epoch 2: processes (0, 1, 2) are all back" in output, output
    assert "epoch 1: processes (0, 1, 2, 3) make a larger job" in output, output
    # The example compares the losses itself, and fails where they are apart.
    assert re.search(r"last loss \d+\.\d+ after 3 changes of members, \d+\.\d+ undisturbed", output), output
