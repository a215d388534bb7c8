"""Unauthenticated peers flood the listeners of a job over TCP: it ends right, none gets in, their cost is bounded."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxring.world.connections import allowance, listener
from tests.stress.stress_jobs import ROOT, Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")
CLIENT = str(ROOT / "benchmarks" / "unauthenticated.py")
PROCESSES = 2
# Beside what unauthenticated peers take: links that are made meanwhile, their threads, those of JAX.
SLACK = 40

pytestmark = pytest.mark.multiprocess


def held(pid):
    """How many descriptors and threads a process has."""
    return [len(list(pathlib.Path(f"/proc/{pid}/{what}").iterdir())) for what in ("fd", "task")]


def said(job, process, word):
    (line,) = (line for line in job.text(process).splitlines() if line.startswith(word + " "))
    return json.loads(line.partition(" ")[2])


def test_a_flood_of_unauthenticated_peers(tmp_path):
    with coordinator_port() as port, Job(tmp_path) as job:
        env = environment(1, JAXRING_SHM_DISABLE="1", JAXRING_NSOCKS="2", FOLDER=str(tmp_path))
        command = [sys.executable, "-X", "faulthandler", WORKER, "flooded"]
        processes = [
            job.start(command, member(env, f"127.0.0.1:{port}", PROCESSES, process)) for process in range(PROCESSES)
        ]
        for process in range(PROCESSES):
            job.wait_for_line(process, "ready")
        doors = [said(job, process, "door") for process in range(PROCESSES)]
        before = [held(process.pid) for process in processes]
        begun = time.monotonic()
        targets = [f"{address}:{number}" for (address, number), _ in doors]
        command = [sys.executable, "-I", "-S", CLIENT, "--held", "1200", *targets]
        (tmp_path / "replay").write_text(doors[1][1])
        with (tmp_path / "replay").open() as replay, (tmp_path / "counts").open("w") as out:
            flood = subprocess.Popen(command, stdin=replay, stdout=out)
        try:
            most, had = before, {}
            while len(had) < PROCESSES or not all("linked" in job.text(p).splitlines() for p in range(PROCESSES)):
                assert time.monotonic() < begun + 100, str(job)
                assert all(process.poll() is None for process in processes), str(job)
                most = [list(map(max, now, held(process.pid))) for now, process in zip(most, processes, strict=True)]
                for process in range(PROCESSES):
                    if process not in had and "had " in job.text(process):
                        had[process] = (said(job, process, "had"), time.monotonic() - begun)
            flood.send_signal(signal.SIGINT)
            flood.wait(60)
            counts = json.loads((tmp_path / "counts").read_text())
        finally:
            flood.kill()
            flood.wait()
        (tmp_path / "over").touch()
        results = job.wait(60)
    assert all(result.code == 0 for result in results), str(job)
    assert all(result.out.splitlines()[-1] == "checked" for result in results)
    # Of far more than may be held at a time, nobody got further than a question.
    assert counts["made"] > 2 * listener.MAX_UNAUTHENTICATED, counts
    assert counts["refused"] > 0, counts
    assert counts["welcomed"] == 0, counts
    for (descriptors, threads), (most_descriptors, most_threads) in zip(before, most, strict=True):
        assert most_descriptors <= descriptors + listener.MAX_UNAUTHENTICATED + SLACK, (before, most)
        assert most_threads <= threads + SLACK, (before, most)
    # Each that is accepted costs the job something, and there are no more than so many, however many knock.
    for connections, seconds in had.values():
        own = 20
        assert connections <= own + allowance.BURST + allowance.RATE * seconds + allowance.BURST_REFILL, (had, counts)
