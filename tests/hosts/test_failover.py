"""Hosts with two links, of which one fails silently under load and comes back: no call fails, and the log says so."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import Job, environment

WORKER = str(pathlib.Path(__file__).parent / "worker_failover.py")
DATA = (1, 2)
SETTINGS = {"JAXRING_SOCKET_IFNAME": "=jxb0,jxc0", "JAXRING_DEBUG": "WARN"}

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]


def top(pid):
    """The processes that `jaxring top` shows of the job that has this one: other jobs may have the same address."""
    command = [sys.executable, "-m", "jaxring.cli", "top", "--once", "--json", "--job", str(pid)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["processes"]


def start(made, job, folder, **settings):
    """The processes of a job on both hosts, each of which has added under load. Flight records go to the folder."""
    more = {"FOLDER": str(folder), "TMPDIR": str(folder), **SETTINGS, **settings}
    started = made.start(job, [WORKER], [0, 1], **more)
    for process in (0, 1):
        job.wait_for_line(process, "ready")
    return started


def wait_for(job, process, words):
    """Until the process has said so in its log."""
    until = time.monotonic() + 100
    while words not in job.text(process):
        assert time.monotonic() < until, f"no {words!r}\n{job}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("net", "networks"), [("Socket", DATA[:1]), ("TLS", DATA), ("Socket", DATA), ("Socket", DATA[::-1])]
)
@pytest.mark.sampled(4)
def test_a_link_that_fails_and_comes_back_is_logged_and_no_call_fails(tmp_path, net, networks):
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        started = start(made, job, tmp_path, JAXRING_NET=net, JAXRING_DEBUG="INFO")
        for network in networks:
            (other,) = set(DATA) - {network}
            failed, left = made.address(1, network), made.address(1, other)
            made.sever(1, network)
            wait_for(job, 0, f"at {failed}; its connections go on over {left}.")
            (own,) = (each for each in top(started[0].pid) if each["pid"] == started[0].pid)
            assert 0 < own["detours"] <= own["resumable"], own
            made.rejoin(1, network)
            wait_for(job, 0, f"answers again at {failed}; its connections go back to that.")
        (tmp_path / "stop").touch()
        for result in job.wait():
            assert result.code == 0, str(job)
            assert "right " in result.out, str(job)


@pytest.mark.slow
def test_a_link_that_comes_back_when_its_time_is_nearly_over(tmp_path):
    """The kernels of this host and the other one do not find that at the same time."""
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        start(made, job, tmp_path, CROSSED="2", JAXRING_DEBUG="INFO")
        made.sever(1, DATA[0])  # which carries the control connections
        time.sleep(8)  # of the ten seconds of JAXRING_LINK_TIMEOUT
        made.rejoin(1, DATA[0])
        time.sleep(5)  # by then the one that has accepted a connection would have given it up
        (tmp_path / "stop").touch()
        for result in job.wait():
            assert result.code == 0, str(job)
            assert "right " in result.out, str(job)


def test_a_link_that_fails_while_its_connections_are_idle(tmp_path):
    """What is sent after the pause is not late before it was sent."""
    limit_s = 3
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        start(made, job, tmp_path, PAUSES="0.5", JAXRING_LINK_TIMEOUT=str(limit_s))
        time.sleep(limit_s + 0.5)  # no data connection has had an acknowledgement for that time
        made.sever(1, DATA[1])  # the other one carries the control connections, which have heartbeats
        (tmp_path / "stop").touch()
        for result in job.wait():
            assert result.code == 0, str(result)
            assert "right" in result.out, str(result)
            assert "; its connections go on over " in result.out, str(result)


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.sampled(2)
def test_a_link_that_fails_while_a_process_waits_in_rebuild(tmp_path, waits):
    """Its connections leave the link, and neither process takes the other one for lost."""
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        start(made, job, tmp_path, WAITS=str(waits), JAXRING_LINK_TIMEOUT="5")
        network = DATA[0]  # which carries the control connections
        made.sever(1, network)
        for process in (0, 1):
            wait_for(job, process, "; its connections go on over ")
        made.rejoin(1, network)
        (tmp_path / "stop").touch()
        for result in job.wait():
            assert result.code == 0, str(result)
            assert "rebuilt (0, 1)" in result.out, str(result)


def test_all_links_that_fail_are_a_dead_host(tmp_path):
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        start(made, job, tmp_path, JAXRING_LINK_TIMEOUT="3")
        for network in DATA:
            made.sever(1, network)
        for process in (0, 1):
            wait_for(job, process, "no path to its host has answered for 3 s")
        (tmp_path / "over").touch()
        for result in job.wait():
            assert result.code == 3, str(result)
            assert "UNAVAILABLE" in result.out, str(result)


def test_a_process_that_is_killed_is_named_at_once_though_its_connections_could_go_on(tmp_path):
    with hosts(2, networks=3) as made, Job(tmp_path) as job:
        started = start(made, job, tmp_path)
        started[1].kill()
        wait_for(job, 0, "lost rank 1")
        (tmp_path / "over").touch()
        result = job.wait()[0]
        assert result.code == 3, str(result)
        assert "without a word" in result.out, str(result)


@pytest.mark.slow
def test_the_benchmark_disturbs_all_phases_and_finds_right_results():
    command = [sys.executable, "-m", "benchmarks.failover", "--hosts", "3", "--bytes", str(1 << 24), "--phases", "3"]
    with hosts(1):  # skips where this machine can make no namespaces
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    # Not the exit status, which depends on times.
    assert "18 cases, all results right" in done.stdout, done.stdout + done.stderr
