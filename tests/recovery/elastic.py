"""Runs the jobs that seeds change: `python -m tests.recovery.elastic SEED [SEED]`, the first to the last of them.

A job has passed if every process that is to live ends with the weights of an undisturbed run, and with the bits that a
job gives which has had the last members from the start; in time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.recovery.elastic_plan import Plan, weights
from tests.stress.stress_jobs import Job, coordinator_port, environment

WORKER = [sys.executable, "-X", "faulthandler", str(pathlib.Path(__file__).parent / "elastic_worker.py")]
# How many times longer than usual everything may take: for a busy machine.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
LIMIT_S = 280.0 * PATIENCE


def _environment(folder: pathlib.Path, devices: int, shared_memory: bool) -> dict[str, str]:
    return environment(
        devices,
        JAX_ENABLE_RECOVERABILITY="1",
        JAXRING_SHM_DISABLE="0" if shared_memory else "1",
        JAXRING_DEBUG="WARN",
        JAXRING_TIMEOUT=str(round(100 * PATIENCE)),
        JAXRING_JOIN_TIMEOUT=str(round(100 * PATIENCE)),
        TEST_PATIENCE=str(PATIENCE),
        TEST_OTHERS_HAVE_ENDED=str(folder / "ended"),
    )


def _end(out: str) -> list[str]:
    """What a process says at its end: its place among the members, its steps, weights and last bits."""
    return next((line.split()[1:] for line in out.splitlines() if line.startswith("end ")), [])


@functools.cache
def reference(size: int, devices: int, shared_memory: bool) -> dict[str, str]:
    """The last bits by place in a job that has had so many processes from the start."""
    with tempfile.TemporaryDirectory() as name, Job(pathlib.Path(name)) as job, coordinator_port() as port:
        folder = pathlib.Path(name)
        env = _environment(folder, devices, shared_memory)
        started = [
            job.start([*WORKER, "reference", str(size), f"127.0.0.1:{port}", str(process)], env)
            for process in range(size)
        ]
        job.wait_for_line(0, "end ", LIMIT_S)
        for other in started[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):  # which wait() below tells
                other.wait(LIMIT_S)
        (folder / "ended").touch()
        results = job.wait(LIMIT_S)
        assert all(result.code == 0 for result in results), str(job)
        return {end[0]: end[3] for end in (_end(result.out) for result in results)}


def run(seed: int, folder: pathlib.Path) -> None:
    """AssertionError where the job of this seed has not passed."""
    plan = Plan(seed)
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(coordinator_port()) for _ in range(plan.rounds[-1].job + 1)]
        job = stack.enter_context(Job(folder))
        started = _start_all(plan, job, folder, [f"127.0.0.1:{port}" for port in ports])
        results = job.wait(0)
        about = f"{plan}\n{job}"
        assert len(started) == len(plan.starts), about
    ends = {}
    for start, index in started.items():
        result, lives = results[index], plan.starts[start].dies < 0
        left = plan.starts[start].moment == "leave" and plan.rounds[plan.starts[start].dies].kind == "lose"
        assert result.code == (0 if lives or left else -9), f"start {start} ended with {result.code}\n{about}"
        if lives:
            place, step, w, bits = _end(result.out)
            assert int(step) >= plan.last_step, about
            assert w == weights(int(step)).tobytes().hex(), f"start {start} has other weights\n{about}"
            ends[place] = bits
    expected = reference(len(plan.rounds[-1].numbers), plan.devices, plan.shared_memory)
    assert ends == expected, f"other bits than {expected}\n{about}"


def _start_all(plan: Plan, job: Job, folder: pathlib.Path, coordinators: list[str]) -> dict[int, int]:
    """Starts each process when its time has come, until all have ended: the job's index of each start."""
    env = _environment(folder, plan.devices, plan.shared_memory)
    deadline = time.monotonic() + LIMIT_S
    started: dict[int, int] = {}
    processes = {}
    while time.monotonic() < deadline:
        said = job.text(0) if started else ""
        for start in plan.starts:
            due = start.begin < 0 or f" round {start.begin}\n" in said
            if start.after >= 0:
                due = start.after in processes and processes[start.after].poll() is not None
            if start.name in processes or not due:
                continue
            started[start.name] = len(started)
            processes[start.name] = job.start([*WORKER, str(plan.seed), str(start.name), *coordinators], env)
        ended = {name for name, process in processes.items() if process.poll() is not None}
        if any(processes[name].poll() not in (0, -9) for name in ended) or len(ended) == len(plan.starts):
            break
        if len(ended) == len(plan.starts) - 1 and 0 not in ended:
            (folder / "ended").touch()
        time.sleep(0.02)
    return started


def main(first: str, last: str = "") -> int:
    failed = []
    for seed in range(int(first), int(last or first) + 1):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="jaxring-elastic-") as folder:
            try:
                run(seed, pathlib.Path(folder))
                said = "passed"
            except AssertionError as error:
                failed.append(seed)
                said = f"FAILED: {error}"
        print(f"seed {seed}, {time.monotonic() - began:.1f} s: {said}", flush=True)
    print(f"{len(failed)} failed: {failed}", flush=True)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
