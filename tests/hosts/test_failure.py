"""A process that is killed: who waits for it is told, and nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import sys

import pytest

from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]


@contextlib.contextmanager
def three_processes(tmp_path, where, algorithm):
    """A job of three processes of two devices, by shared memory or over TCP. All but the last end by themselves."""
    settings = {"ALGORITHM": algorithm, "FOLDER": str(tmp_path), "JAXRING_DEBUG": "WARN"}
    with contextlib.ExitStack() as stack:
        if where == "hosts":
            made = stack.enter_context(hosts(3))
            job = stack.enter_context(Job(tmp_path))
            processes = made.start(job, [WORKER, "survive"], [0, 1, 2], devices=2, **settings)
        else:
            port = stack.enter_context(coordinator_port())
            job = stack.enter_context(Job(tmp_path))
            env = environment(2, **settings)
            processes = [
                job.start([sys.executable, WORKER, "survive"], member(env, f"127.0.0.1:{port}", 3, p)) for p in range(3)
            ]
        for process in range(3):
            job.wait_for_line(process, "ready")
        yield job, processes


@pytest.mark.parametrize("where", ["one host", pytest.param("hosts", marks=pytest.mark.netns)])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.sampled(4)
def test_a_killed_process_is_named_to_who_waits_for_it(tmp_path, where, algorithm):
    with three_processes(tmp_path, where, algorithm) as (job, processes):
        # The first two wait inside an all_reduce that the third never joins.
        processes[2].kill()
        # Then they try again, and only when both have been told does either go away.
        for attempt in range(2):
            for process in range(2):
                job.wait_for_line(process, f"after {attempt}")
            (tmp_path / f"go{attempt}").touch()
        results = job.wait(100)
    assert results[2].code == -signal.SIGKILL
    for result in results[:2]:
        assert result.code == 0, str(result)
        told = [line.partition(" raised ")[2] for line in result.out.splitlines() if " raised " in line]
        assert len(told) == 2, str(result)
        for text in map(json.loads, told):
            assert "all_reduce" in text
            # In this ring of six, the ranks of both survivors are next to one of the dead process, ranks 4 and 5.
            assert "rank 4" in text or "rank 5" in text, str(result)
            assert "process 2" in text


def test_nothing_stays_after_all_are_killed(tmp_path):
    before = set(pathlib.Path("/dev/shm").iterdir())
    with three_processes(tmp_path, "one host", "ring") as (_, processes):
        maps = pathlib.Path(f"/proc/{processes[0].pid}/maps").read_text()
        assert "memfd:" in maps  # what the ranks share has no name in a file system
        assert set(pathlib.Path("/dev/shm").iterdir()) <= before
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    assert set(pathlib.Path("/dev/shm").iterdir()) <= before
