"""Peers that are killed or stopped while others wait in a collective that XLA inserted, in a script without jaxring."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sys

import pytest

from jaxring.cli import main
from jaxring.trace.flight import read
from tests.stress.stress_jobs import Job, environment

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]
SCRIPT = pathlib.Path(__file__).parent / "wp_fails.py"
LINES = SCRIPT.read_text().splitlines()
# What the other processes are told of process 1, and where each program's collective comes from.
TOLD = {
    "SIGKILL": r"lost rank [23] \(process 1 on \S+\): its process ended without a word",
    "SIGSTOP": r"waits for a message from rank [23] \(process 1 on \S+\).* has not moved for [0-9.]+ s: it is stopped",
}
COLLECTIVES = {
    "sums": ("all_reduce max of float32[48]", "return x.max(0)", "jit(sums)/reduce_max"),
    "moves": ("all_to_all of float32[6,8,1,8]", "y = jnp.sin(x)", "jit(moves)/sin"),
}


@pytest.mark.parametrize(
    ("name", "program"), [("SIGKILL", "sums"), pytest.param("SIGSTOP", "moves", marks=pytest.mark.slow)]
)
def test_who_waits_is_told_the_process_the_operation_and_the_line(tmp_path, capsys, name, program):
    what, begin, op = COLLECTIVES[program]
    (line,) = [number for number, text in enumerate(LINES, 1) if text.strip().startswith(begin)]
    site = f"wp_fails.py:{line} ({op})"
    records = tmp_path / "records"
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", "--devices-per-process", "2"]
    with Job(tmp_path) as job:
        job.start(
            [*command, "--install", "whole", str(SCRIPT), name, program, str(tmp_path)],
            environment(2, JAXRING_TIMEOUT="5", JAXRING_TRACE_DIR=str(records)),
        )
        (result,) = job.wait(120)
    assert result.code == (128 + signal.SIGKILL if name == "SIGKILL" else 1), str(result)
    for process in (0, 2):
        error = re.search(rf"^\[{process}\] \S*(?:JaxRuntimeError|ValueError): (.*)$", result.err, re.MULTILINE)
        assert error is not None, str(result)
        assert f"jaxring.{what} over 6 of 6 devices at {site}, execution 1: " in error[1], str(result)
        assert re.search(TOLD[name], error[1]), str(result)

    # One of each process, and none of the launcher's.
    files = {read(path).process: path for path in records.iterdir()}
    assert (sorted(files), len(list(records.iterdir()))) == ([0, 1, 2], 3)
    for process in (0, 2):
        last = read(files[process]).records[-1]
        assert last.state == "failed"
        assert f"jaxring.{what} over 6 of 6 devices at {site}" in last.what
    assert main(["trace", "diff", *map(str, files.values())]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Process 1 (pid ")
    assert f"has not begun jaxring.{what} over 6 of 6 devices at {site}, execution 1" in said
    view = tmp_path / "view.json"
    assert main(["trace", "view", *map(str, files.values()), "-o", str(view)]) == 0
    assert site in {event.get("args", {}).get("site") for event in json.loads(view.read_text())["traceEvents"]}
