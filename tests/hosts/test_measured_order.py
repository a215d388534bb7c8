"""`jaxring tune --ranks` between hosts whose links are not alike, and a job that uses the order it has found."""

from __future__ import annotations

import json
import pathlib

import pytest

from jaxring.topology import order as orders
from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import Job

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")
TUNE = ["-m", "jaxring.cli", "tune", "--ranks"]

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess]

FAST, SLOW = "800mbit", "20mbit"
# By host, those to which it sends slowly. Of all rings one has no slow hop: 0, 3, 1, 2. Its reverse has 2 -> 1.
SLOWLY = {0: [1], 1: [0], 2: [3, 1], 3: [2]}
RING = ["host0", "host3", "host1", "host2"]


def finish(job):
    results = job.wait(200)
    assert all(result.code == 0 for result in results), str(job)
    return results


def explained(result):
    """What the plans' lines in the log say of the order of hosts."""
    return {line.partition("hosts in the order of ")[2] for line in result.err.splitlines()} - {""}


def connected(result):
    """The pairs of addresses between which this process has connections."""
    (line,) = (line for line in result.out.splitlines() if line.startswith("connections "))
    return {tuple(pair) for pair in json.loads(line.partition(" ")[2])}


@pytest.mark.slow
def test_a_ring_avoids_the_slow_links(tmp_path):
    cache, folders = tmp_path / "cache", [tmp_path / name for name in ("tune", "plain", "job", "file")]
    for folder in folders:
        folder.mkdir()
    with hosts(4) as made:
        for host, targets in SLOWLY.items():
            made.slow(host, dict.fromkeys(targets, SLOW), FAST)
        with Job(folders[1]) as job:
            made.start(job, [WORKER, "peers"], [0, 1, 2, 3], JAXRING_ALGO="ring", XDG_CACHE_HOME=str(cache))
            before = finish(job)
        with Job(folders[0]) as job:
            made.start(job, TUNE, [0, 1, 2, 3], XDG_CACHE_HOME=str(cache))
            tuned = finish(job)
        (file,) = (cache / "jaxring" / "orders").iterdir()
        found = orders.parse(file.read_bytes())
        with Job(folders[2]) as job:
            made.start(job, [WORKER, "peers"], [0, 1, 2, 3], JAXRING_ALGO="ring", XDG_CACHE_HOME=str(cache))
            after = finish(job)
    assert list(found.hosts) == RING, tuned[0].out
    assert "6 pairs of 4 hosts" in tuned[0].out
    # In the order of ranks, hosts 2 and 3 are neighbours; in the measured one they never talk.
    between = (made.address(2), made.address(3))
    assert between in connected(before[2])
    assert between not in connected(after[2])
    for result in after:
        assert explained(result) == {f"{file}: {', '.join(RING)}"}, str(result)
    for result in before:
        assert not explained(result), str(result)


def test_a_job_on_one_host_has_nothing_to_order(tmp_path):
    with hosts(1) as made, Job(tmp_path) as job:
        made.start(job, TUNE, [0, 0])
        results = job.wait(200)
    assert [result.code for result in results] == [1, 1], str(job)
    for result in results:
        assert "All processes of this job are on one host" in result.err


@pytest.mark.slow
def test_an_unreachable_host_is_named(tmp_path):
    with hosts(3) as made, Job(tmp_path) as job:
        made.drop_connections_to(2)
        made.start(job, TUNE, [0, 1, 2], JAXRING_JOIN_TIMEOUT="5", XDG_CACHE_HOME=str(tmp_path))
        results = job.wait(200)
    assert [result.code for result in results] == [1, 1, 1], str(job)
    for result in results:
        assert "on host2) within" in result.err, str(result)
        assert "a firewall may drop the packets" in result.err
