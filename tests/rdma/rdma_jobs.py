"""JAX jobs of two processes whose data go by RDMA, on soft-RoCE and on soft-iWARP: run in the guest of test-rdma.

Not named test_*: the guest's devices are needed, and nothing here is skipped. What they are compared with needs none,
and takes long there: `python rdma_jobs.py FILE` writes it, and TEST_TCP_BITS names the file.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests.stress.stress_jobs import Job, coordinator_port, environment, member

HERE = pathlib.Path(__file__).parent
WORKER = str(HERE / "worker_rdma.py")
FAILOVER_WORKER = str(HERE.parent / "hosts/worker_failover.py")
GPU_WORKER = HERE.parent / "runtime/cuda/cudahost_worker.py"
DEVICES = {"rxe": ("rxe0", "rxe1"), "siw": ("siw0", "siw1")}
# Of the connection of the first process to the second, in the log.
SAID = {
    "rxe": ("rxe0 port 1 (GID 1 ::ffff:10.77.0.1, RoCE v2) to GID ::ffff:10.77.0.2", "queue pairs "),
    "siw": ("siw0 port 1 (10.78.0.1)", "queue pairs "),
}

# Seconds for a job, or for a line of one: the guest's processors are emulated, and importing JAX takes 20 s there.
PATIENCE = 400

every_kind = pytest.mark.parametrize("kind", DEVICES)


def begin(job, port, kind, cases, *, own=({}, {}), devices=1, **settings):
    """Two processes that take themselves for hosts, with an RDMA device each. `own`: settings of each process."""
    started = []
    for process, device in enumerate(DEVICES[kind]):
        each = {"JAXRING_HOSTID": str(process), "JAXRING_NET": "IB", "JAXRING_IB_HCA": f"={device}", **own[process]}
        env = environment(devices, **{"JAXRING_DEBUG": "INFO", "JAXRING_JOIN_TIMEOUT": "200", **settings, **each})
        python = [sys.executable, "-X", "faulthandler", WORKER, *cases]
        started.append(job.start(python, member(env, f"127.0.0.1:{port}", 2, process)))
    return started


def run(folder, kind, cases, **options):
    folder.mkdir(exist_ok=True)
    with coordinator_port() as port, Job(folder) as job:
        begin(job, port, kind, cases, **options)
        results = job.wait(PATIENCE)
        assert all(result.code == 0 for result in results), str(job)
    return results


def line(result, word):
    (found,) = (text.partition(" ")[2] for text in result.out.splitlines() if text.startswith(word + " "))
    return found


def over_tcp(folder):
    """What every process gets over TCP."""
    plain = {"JAXRING_NET": "Socket", "JAXRING_IB_HCA": ""}
    results = run(folder, "rxe", ["every"], own=(plain, plain))
    assert all(json.loads(line(result, "transports")) == ["tcp"] for result in results)
    return [line(result, "bits") for result in results]


@pytest.fixture(scope="module")
def tcp_bits():
    return json.loads(pathlib.Path(os.environ["TEST_TCP_BITS"]).read_text(encoding="utf-8"))


@every_kind
def test_every_collective_has_the_bits_of_tcp(tmp_path, kind, tcp_bits):
    results = run(tmp_path, kind, ["every", "messages", "explained"])
    assert [line(result, "bits") for result in results] == tcp_bits
    for result in results:
        assert all(
            json.loads(text.partition(" ")[2]) == ["verbs"]
            for text in result.out.splitlines()
            if text.startswith("transports ")
        )
        assert "transport verbs" in result.out
    assert all(part in results[0].err for part in SAID[kind]), results[0].err[-4000:]


def test_several_queue_pairs(tmp_path, tcp_bits):
    results = run(tmp_path, "rxe", ["every"], JAXRING_IB_QPS_PER_CONNECTION="3")
    assert [line(result, "bits") for result in results] == tcp_bits


def test_by_default_rdma_is_taken_where_both_have_it(tmp_path):
    unset = {"JAXRING_NET": "", "JAXRING_IB_HCA": ""}
    for result in run(tmp_path, "rxe", ["one"], own=(unset, unset)):
        assert json.loads(line(result, "transports")) == ["verbs"]


@every_kind
def test_a_killed_peer_is_named(tmp_path, kind):
    with coordinator_port() as port, Job(tmp_path) as job:
        _, victim = begin(job, port, kind, ["survive"], devices=2, ALGORITHM="ring", FOLDER=str(tmp_path))
        for process in range(2):
            job.wait_for_line(process, "ready", PATIENCE)
        victim.kill()
        for attempt in range(2):
            job.wait_for_line(0, f"after {attempt}")
            (tmp_path / f"go{attempt}").touch()
        survivor, killed = job.wait(60)
    assert killed.code == -signal.SIGKILL
    told = [text for text in survivor.out.splitlines() if " raised " in text]
    assert len(told) == 2, str(survivor)
    assert all("all_reduce" in text and "process 1" in text for text in told), told


def wait_for(job, process, words):
    """Until the process has said so in its log."""
    until = time.monotonic() + PATIENCE
    while words not in job.text(process):
        assert time.monotonic() < until, f"no {words!r}\n{job}"
        time.sleep(0.05)


def test_a_cable_that_fails_and_is_mended_is_told_and_no_call_fails(tmp_path):
    """Rings and trees over two cables, of which one fails at a time."""
    cables = {"jxr": ("rxe0", "rxe1"), "jxt": ("rxe2", "rxe3")}
    failures = (
        ("jxr", "ip link set jxr1 down", "ip link set jxr1 up"),
        ("jxt", "tc qdisc add dev jxt0 root netem loss 100%", "tc qdisc delete dev jxt0 root"),
    )
    with coordinator_port() as port, Job(tmp_path) as job:
        for process in range(2):
            own = {
                "JAXRING_HOSTID": str(process),
                "JAXRING_IB_HCA": "=" + ",".join(pair[process] for pair in cables.values()),
                "FOLDER": str(tmp_path),
            }
            env = environment(1, JAXRING_NET="IB", JAXRING_JOIN_TIMEOUT="200", JAXRING_LINK_TIMEOUT="60", **own)
            env["JAXRING_TIMEOUT"] = "200"
            job.start([sys.executable, FAILOVER_WORKER], member(env, f"127.0.0.1:{port}", 2, process))
        for process in range(2):
            job.wait_for_line(process, "ready", PATIENCE)
        for cable, begin_it, end_it in failures:
            (other,) = cables.keys() - {cable}
            at, on = (
                [f"RDMA port {cables[name][1 - end]}:1 (from {cables[name][end]}:1)" for end in (0, 1)]
                for name in (cable, other)
            )
            subprocess.run(begin_it.split(), check=True)
            for end in (0, 1):
                wait_for(job, end, f"at {at[end]}; its connections go on over {on[end]}.")
            subprocess.run(end_it.split(), check=True)
            for end in (0, 1):
                wait_for(job, end, f"answers again at {at[end]}; its connections go back to that.")
        (tmp_path / "stop").touch()
        results = job.wait(PATIENCE)
    for result in results:
        assert result.code == 0, str(result)
        assert "right " in result.out, str(result)
        print(line(result, "right"))  # how long the calls stood, beside what the log says


@pytest.mark.parametrize(
    ("kind", "settings", "place"),
    [
        ("rxe", {"JAXRING_NET_GDR_LEVEL": "SYS"}, "GPU memory, by rxe0 by nvidia-peermem, since rxe0 port 1"),
        ("siw", {"JAXRING_NET_GDR_LEVEL": "SYS"}, "GPU memory, by siw0 by nvidia-peermem, since siw0 port 1"),
        ("rxe", {}, "rxe0 is farther from the GPU than JAXRING_NET_GDR_LEVEL says"),
        ("rxe", {"JAXRING_NET_GDR_LEVEL": "SYS", "JAXRING_CHECKSUM": "1"}, "JAXRING_CHECKSUM makes the CPU read"),
    ],
)
def test_the_gpu_engine_by_rdma(tmp_path, kind, settings, place):
    """On the fake GPU, whose memory these devices take by its address."""
    with coordinator_port() as port, Job(tmp_path) as job:
        for process, device in enumerate(DEVICES[kind]):
            own = {"JAXRING_HOSTID": str(process), "JAXRING_NET": "IB", "JAXRING_IB_HCA": f"={device}"}
            env = environment(1, JAXRING_DEBUG="INFO", JAXRING_JOIN_TIMEOUT="200", **own, **settings)
            env |= {"JAXRING_TIMEOUT": "200", "JAXRING_P2P": "shared"}  # both have the fake's one GPU
            job.start([sys.executable, str(GPU_WORKER), "over_rdma", str(process), "2", "1", str(port)], env)
        results = job.wait(PATIENCE)
        assert all(result.code == 0 for result in results), str(job)
    assert place in results[0].err, results[0].err[-4000:]
    for result in results:
        carried, direct, from_gpu = map(int, line(result, "moved").split())
        # LL's messages are carried, all others are not.
        assert 0 < direct < carried
        assert from_gpu == (direct if "GPU memory, by" in place else 0)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (({"JAXRING_IB_GID_INDEX": "77"}, {}), "serves JAXRING_NET=IB, JAXRING_IB_HCA==rxe0, JAXRING_IB_GID_INDEX=77"),
        (({"JAXRING_IB_GID_INDEX": "0"}, {}), "no kind of it in common"),
        (({"JAXRING_IB_HCA": "mlx5"}, {}), "There are: "),
    ],
)
def test_what_cannot_be_had_is_an_error_and_not_tcp(tmp_path, own, said):
    with coordinator_port() as port, Job(tmp_path) as job:
        begin(job, port, "rxe", ["one"], own=own, JAXRING_JOIN_TIMEOUT="30")
        results = job.wait(PATIENCE)
    assert said in results[0].out + results[0].err, str(results[0])
    assert "went well" not in results[0].out + results[1].out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(over_tcp(pathlib.Path(made))), encoding="utf-8")
