"""A host whose cable is pulled: who works with it is told which rank, process and host, in time, on both sides."""

from __future__ import annotations

import json
import pathlib
import time

import pytest

from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import Job

WORKER = str(pathlib.Path(__file__).parent / "worker_cut.py")
# The job's JAXRING_LINK_TIMEOUT and the timeout= of its shorter call; how late an error may be.
LINK_S, CALL_S, LATE_S = 4.0, 2.0, 2.0
PLACEMENT = [0, 1, 1]

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]


def errors(job, process, what, processes):
    """What the call raised there, which names a process of the other host."""
    error = json.loads(job.wait_for_line(process, f"{what} raised ").removeprefix(f"{what} raised "))
    text = error["text"]
    assert "all_reduce" in text, text
    assert "worker_cut.py" in text, text
    # Two devices each: ranks 2p and 2p + 1.
    others = [p for p in processes if PLACEMENT[p] != PLACEMENT[process]]
    names = [f"rank {r} (process {p} on host{PLACEMENT[p]})" for p in others for r in (2 * p, 2 * p + 1)]
    assert any(name in text for name in names), (text, names)
    return error


@pytest.mark.slow
def test_a_pulled_cable_is_told_on_both_sides_and_mended(tmp_path):
    settings = {"FOLDER": str(tmp_path), "JAXRING_LINK_TIMEOUT": f"{LINK_S:g}", "JAXRING_DEBUG": "WARN"}
    processes = range(len(PLACEMENT))
    with hosts(2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER], PLACEMENT, devices=2, **settings)
        for process in processes:
            job.wait_for_line(process, "ready")
        (tmp_path / "begin").touch()
        for process in processes[:-1]:
            job.wait_for_line(process, "inside")
        made.cut(1)
        cut = time.monotonic()
        (tmp_path / "cut").touch()
        for process in processes:
            error = errors(job, process, "inside", processes)
            assert error["at"] - cut < LINK_S + LATE_S, error
            assert "UNAVAILABLE" in error["text"], error
            assert f"its host has acknowledged nothing for {LINK_S:g} s" in error["text"], error
            assert "JAXRING_LINK_TIMEOUT" in error["text"], error
        made.mend(1)
        (tmp_path / "mended").touch()
        for process in processes:
            job.wait_for_line(process, "members (0, 1, 2)")
            job.wait_for_line(process, "idle")
        made.cut(1)
        (tmp_path / "cut idle").touch()
        for process in processes:
            # The call's own deadline comes first, and says that nothing has come from the other side.
            error = errors(job, process, "late", processes)
            assert error["at"] - error["began"] < CALL_S + LATE_S, error
            assert "DEADLINE_EXCEEDED" in error["text"], error
            assert "cut off" in error["text"], error
            error = errors(job, process, "noticed", processes)
            assert error["at"] - error["began"] < LINK_S + LATE_S, error
            assert "acknowledged nothing" in error["text"], error
        (tmp_path / "done").touch()
        for result in job.wait(60):
            assert result.code == 0, str(result)
