"""Four hosts with two processes each: who holds the others up is named with the cause, and seen from a fifth host."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from jaxring.trace import jobs
from jaxring.trace.lateness import stragglers
from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import ROOT, Job, environment

WORKER = str(pathlib.Path(__file__).parent / "worker_stragglers.py")
PLACEMENT = [0, 0, 1, 1, 2, 2, 3, 3]
# TEST_STEPS: a long run, which needs the quota of a CPU.
LONG = "TEST_STEPS" in os.environ
UNDISTURBED, WITHIN = int(os.environ.get("TEST_STEPS", "40")), 20
# The process with a CPU quota, the one whose input sleeps, and the host with a slow network.
QUOTA, INPUT, NETWORK = 1, 4, 3

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@contextlib.contextmanager
def quota(pid, percent=2):
    """So much of a CPU for a process, by a control group. Yields whether it has one: not every container may."""
    old, new = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")
    group = (old if old.is_dir() else new) / f"jaxring-test-{pid}"
    before = pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    home = next((line.rpartition(":")[2] for line in before.splitlines() if line.split(":")[1] in ("", "cpu")), "/")
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text(f"{1000 * percent}")
        else:
            (group / "cpu.max").write_text(f"{1000 * percent} 100000")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        if LONG:
            raise
        print(f"no process has a quota of CPU here: {error}")
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            (group.parent / home.lstrip("/") / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()


def look(pids):
    """The records of the job's processes in order."""
    return sorted((each.flight for each in jobs.living(pids)), key=lambda flight: flight.process)


def steps(flight):
    return {record.number: record for record in flight.records}


def steps_after(pids, count):
    """The records once ``count`` more steps have ended, and when the last of these was launched."""
    begin = max(record.number for record in look(pids)[0].records)
    deadline = time.monotonic() + 100
    while True:
        flights = look(pids)
        last = steps(flights[0]).get(begin + count)
        if last is not None and last.ended:
            return flights, last.launched
        assert time.monotonic() < deadline
        time.sleep(0.05)


def named(pids):
    """Who is named for what by the steps that follow, and the sentences that say so."""
    steps_after(pids, 3)  # in which the disturbance begins
    found = stragglers(*steps_after(pids, WITHIN))
    return {each.process: each.cause for each in found}, "\n".join(map(str, found))


def slow_network(made):
    shape = ("tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms")
    command = ["tc", "-n", made.names[NETWORK], "qdisc", "add", "dev", made.device(), "root", *shape]
    subprocess.run(command, check=True)


def senders():
    """The processes on the host with the slow network."""
    return {f"process {p}" for p, host in enumerate(PLACEMENT) if host == NETWORK}


def top(made, folder, access, key=None):
    """What `jaxring top` shows on the fifth host, or its warning."""
    if key is not None:
        found = json.loads(access.read_text(encoding="utf-8"))
        access = folder / "other key"
        access.write_text(json.dumps({**found, "key": key}), encoding="utf-8")
    command = [sys.executable, "-m", "jaxring.cli", "top", "--from", str(access), "--once", "--json", "--interval", "1"]
    done = subprocess.run(
        made.command(4, folder, command), env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_each_is_named_with_its_cause_and_nobody_else(tmp_path):
    with hosts(5) as made, Job(tmp_path) as job:
        pids = [each.pid for each in made.start(job, [WORKER, str(tmp_path)], PLACEMENT, JAXRING_DEBUG="WARN")]
        for process in range(len(pids)):
            job.wait_for_line(process, "step 1")
        for _ in range(0, UNDISTURBED, WITHIN):
            nobody = stragglers(*steps_after(pids, WITHIN))
            assert not nobody, [str(each) for each in nobody]
        assert "holds the others up" not in str(job)
        assert "comes late" not in str(job)

        access = tmp_path / "access"
        share = [sys.executable, "-m", "jaxring.cli", "top", "--share", str(access), "--job", str(pids[0])]
        subprocess.run(share, env=environment() | {"PYTHONPATH": str(ROOT)}, check=True, timeout=100)
        assert access.stat().st_mode & 0o777 == 0o600
        seen = top(made, tmp_path, access)
        assert isinstance(seen, dict), seen
        assert [each["name"] for each in seen["processes"]] == [f"process {p}" for p in range(8)]
        assert all(each["operations"] > 0 for each in seen["processes"])
        (call,) = seen["calls"]
        assert (call["processes"], call["executions"] > 0) == (8, True)
        assert "does not hold this job's secret" in top(made, tmp_path, access, key="0" * 64)

        def calm():
            # Nobody is named any more; what the last executions were held up by has gone by then.
            flights, until = steps_after(pids, 2 * WITHIN)
            assert not stragglers(flights, until)

        disturbed = [(INPUT, "input")]
        with quota(pids[QUOTA]) as given:
            if given:
                found, said = named(pids)
                assert found == {f"process {QUOTA}": "compute"}, said
                disturbed.append((QUOTA, "compute"))
        calm()
        (tmp_path / f"input {INPUT}").touch()
        found, said = named(pids)
        assert found == {f"process {INPUT}": "input"}, said
        seen = top(made, tmp_path, access)
        assert [each["process"] for each in seen["stragglers"]] == [f"process {INPUT}"]
        (tmp_path / f"input {INPUT}").unlink()
        calm()
        slow_network(made)
        found, said = named(pids)
        assert found, said
        assert set(found) <= senders(), said
        assert set(found.values()) == {"network"}, said
        # The job has said so itself.
        for process, cause in disturbed:
            lines = [each for each in str(job).splitlines() if f"process {process} comes late to jaxring" in each]
            assert lines
            assert all(f"Likely cause: {cause}: " in each for each in lines), lines
        (tmp_path / "end").touch()
        assert all(result.code == 0 for result in job.wait(100)), str(job)


def test_three_at_once_are_each_named_with_their_cause(tmp_path):
    with hosts(4) as made, Job(tmp_path) as job:
        pids = [each.pid for each in made.start(job, [WORKER, str(tmp_path)], PLACEMENT, JAXRING_DEBUG="WARN")]
        for process in range(len(pids)):
            job.wait_for_line(process, "step 1")
        slow_network(made)
        (tmp_path / f"input {INPUT}").touch()
        with quota(pids[QUOTA], 1) as given:
            found, said = named(pids)
        slow = senders() & set(found)
        assert slow, said
        expected = {f"process {INPUT}": "input", **dict.fromkeys(slow, "network")}
        if given:
            expected[f"process {QUOTA}"] = "compute"
        assert found == expected, said
        (tmp_path / "end").touch()
        assert all(result.code == 0 for result in job.wait(100)), str(job)
