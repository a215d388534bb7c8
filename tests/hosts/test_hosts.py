"""Four hosts, each a network namespace with a hostname of its own, and one host: which transport carries the bytes."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from jaxring.cli import main
from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import ROOT, Job

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess]


def finish(job):
    """The results of a job that all ends well."""
    results = job.wait(200)
    assert all(result.code == 0 for result in results), str(job)
    return results


def transports(result):
    """What the worker says of its plans, each time that it says so."""
    return [json.loads(line.partition(" ")[2]) for line in result.out.splitlines() if line.startswith("transports ")]


def logged(result):
    """The transports in the log's lines about plans among several processes."""
    lines = [line for line in result.err.splitlines() if " transport " in line and " in 1 process(es)" not in line]
    return {line.partition(" transport ")[2].partition(",")[0] for line in lines}


@pytest.mark.slow
def test_four_hosts_take_tcp(tmp_path):
    with hosts(4) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "core", "messages", "messages_of_one"], [0, 1, 2, 3])
        for result in finish(job):
            assert transports(result)[:2] == [["tcp"]] * 2, str(result)
            assert not {"shm", "memory", "shm+tcp"} & logged(result), str(result)


@pytest.mark.slow
def test_four_processes_of_one_host_take_shared_memory(tmp_path):
    with hosts(1) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "core", "messages", "messages_of_one"], [0, 0, 0, 0])
        for result in finish(job):
            assert transports(result)[:2] == [["shm"]] * 2, str(result)
            assert not {"tcp", "memory", "shm+tcp"} & logged(result), str(result)


# The same CPU for both hosts, and one for each where there are several.
CPUS = sorted(os.sched_getaffinity(0))
PAIRS = list(dict.fromkeys([(CPUS[0], CPUS[0]), (CPUS[0], CPUS[-1])]))


@pytest.mark.parametrize("pair", PAIRS, ids=["together", "apart"][: len(PAIRS)])
@pytest.mark.sampled(2)
def test_hosts_that_share_a_cpu_yield_it_to_each_other(tmp_path, pair):
    """As containers do that share a machine."""
    together = pair[0] == pair[1]
    with hosts(2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "crowd"], [0, 1], CPU_OF=json.dumps(pair))
        for result in finish(job):
            (line,) = (line for line in result.out.splitlines() if line.startswith("waits "))
            assert ("yield after 2 polls" in line) == together, line


@pytest.mark.slow
def test_two_hosts_speak_tls_when_told_to(tmp_path):
    with hosts(2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "core"], [0, 1], JAXRING_NET="TLS")
        for result in finish(job):
            assert transports(result)[0] == ["tcp"], str(result)
            assert "TCP encrypted by OpenSSL" in result.err, str(result)


@pytest.mark.parametrize("tables", [["core"], ["messages", "messages_of_one"]], ids=" ".join)
@pytest.mark.sampled(2)
def test_two_hosts_of_two_processes_take_both(tmp_path, tables):
    with hosts(2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, *tables], [0, 0, 1, 1])
        for result in finish(job):
            assert transports(result)[0] == ["shm", "tcp"], str(result)


@pytest.mark.slow
def test_interleaved_processes_of_several_devices_take_both(tmp_path):
    with hosts(2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "core", "gathered"], [0, 1, 0, 1], devices=2)
        for result in finish(job):
            assert {"shm", "tcp"} <= set(transports(result)[0]), str(result)


def test_shared_memory_can_be_turned_off(tmp_path):
    with hosts(1) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "messages", "peers"], [0, 0], JAXRING_SHM_DISABLE="1")
        for result in finish(job):
            assert transports(result) == [["tcp"]] * 2, str(result)


@pytest.mark.parametrize(("chosen", "network"), [("jxa", 0), ("jxb", 1), ("=jxb0", 1), ("^jxa", 1)])
@pytest.mark.sampled(4)
def test_the_interface_can_be_chosen(tmp_path, chosen, network):
    """The coordinator is reached over the first network, and data go over the chosen one."""
    with hosts(2, networks=2) as made, Job(tmp_path) as job:
        made.start(job, [WORKER, "peers"], [0, 1], JAXRING_SOCKET_IFNAME=chosen)
        for host, result in enumerate(finish(job)):
            (line,) = (line for line in result.out.splitlines() if line.startswith("connections "))
            found = json.loads(line.partition(" ")[2])
            over_chosen = [pair for pair in found if pair[0] == made.address(host, network)]
            # Two links, one each way, of JAXRING_NSOCKS sockets, on the chosen network; jax.distributed's beside them.
            assert len(over_chosen) >= 2, found
            assert {pair[1] for pair in over_chosen} == {made.address(1 - host, network)}
            if network == 1:
                assert all(pair[0] in (made.address(host, 0), made.address(host, 1), "127.0.0.1") for pair in found)
            else:
                assert not any(pair[0] == made.address(host, 1) for pair in found), found


def test_the_bench_measures_between_hosts(capsys):
    size = ["-b", "64K", "-e", "64K", "-w", "1", "--iters", "2", "--peers", "jaxring"]
    code = main(["bench", "all_reduce", "-n", "2x1", "--hosts", "2", "--rate", "1gbit", *size])
    out, err = capsys.readouterr()
    if "Hosts as network namespaces need" in err:
        pytest.skip(err)
    assert code == 0, err
    assert "2 hosts, 1 link(s) of 1gbit each" in out
    assert "/tcp" in out


@pytest.mark.slow
def test_the_demo_over_tcp(tmp_path):
    script = str(ROOT / "examples" / "train_lm.py")
    tiny = [
        "--collective",
        "jaxring",
        "--steps",
        "4",
        "--width",
        "32",
        "--layers",
        "1",
        "--plot",
        str(tmp_path / "loss.png"),
    ]
    with hosts(4) as made, Job(tmp_path) as job:
        made.start(job, [str(pathlib.Path(__file__).parent / "worker_script.py"), script, *tiny], [0, 1, 2, 3])
        results = finish(job)
    assert "transport tcp" in results[0].out, str(results[0])
    assert "transport shm" not in results[0].out
    assert all(logged(result) == {"tcp"} for result in results)
