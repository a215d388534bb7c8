"""`jaxring doctor --job` and `jaxring bench --job`, under Open MPI's mpirun."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import types

import pytest

from jaxring.cli import doctor_job
from tests.world.world_fakes import black_hole

jobs = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun"),
]


def mpirun(*programs):
    """What a job prints whose processes have these options of mpirun and of jaxring's."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    for number, (options, arguments) in enumerate(programs):
        command += [*([":"] if number else []), *options, sys.executable, "-m", "jaxring.cli", *arguments]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PJRT_NPROC": "16"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class TestJob:
    pytestmark = jobs

    def test_doctor_says_what_differs_and_what_joins_each_two(self):
        doctor = ["doctor", "--job", "--json"]
        tcp = ["-x", "JAXRING_SHM_DISABLE=1"]
        said = json.loads(mpirun((["-n", "1", *tcp], doctor), (["-n", "1", *tcp, "-x", "JAXRING_PATIENCE=7"], doctor)))
        assert said["processes"] == 2
        assert said["differing"] == {"JAXRING_PATIENCE": {"300": [0], "7": [1]}}
        links = {(link["one"], link["other"]): link for link in said["links"]}
        assert sorted(links) == [(0, 1), (1, 0)]
        for link in links.values():
            assert link["transport"] == "tcp"
            assert link["interface"] in dict(socket.if_nameindex()).values()
            assert link["mtu"] > 0
            assert link["gbs"] > 0
            assert not link["fault"]

    def test_bench_measures_the_job(self):
        arguments = [
            "bench",
            "--job",
            "all_reduce",
            "-b",
            "4",
            "-e",
            "4",
            "-w",
            "1",
            "--iters",
            "8",
            "--peers",
            "xla,gloo",
        ]
        said = mpirun((["-n", "2"], arguments))
        assert "xla: left out, it is not measured within a job" in said
        assert "all_reduce sum float32, 2 processes x 1 device" in said
        rows = re.findall(r"^4 B +(jaxring|gloo) +[\d.]+ .* (\S+)$", said, re.M)
        assert [peer for peer, _ in rows] == ["jaxring", "gloo"]
        assert rows[0][1].endswith("/shm")


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_every_two_processes_meet_once(count):
    rounds = doctor_job._rounds(count)
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    for pairs in rounds:
        assert len(set(itertools.chain(*pairs))) == 2 * len(pairs)


def test_what_cannot_be_reached_is_named():
    with contextlib.closing(socket.socket()) as bound:  # not listening: who connects is refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        world = types.SimpleNamespace(
            own=types.SimpleNamespace(addresses=(("lo", "127.0.0.1", 1),)),
            info=lambda p: types.SimpleNamespace(addresses=(("lo", "127.0.0.1", port),)),
            transport=lambda p: "tcp",
        )
        (refused,) = doctor_job._try_all(world, 0, 2, {"lo": 65536})
        assert refused.fault == f"127.0.0.1 port {port}: Connection refused"
        bound.listen()
        (reached,) = doctor_job._try_all(world, 0, 2, {"lo": 65536})
        assert (reached.fault, reached.interface, reached.mtu) == ("", "lo", 65536)
    seen = [{"host": "a", "findings": []}] * 2
    lines = doctor_job._lines(["a", "b"], seen, {}, [reached, refused])
    assert lines[-3].split() == ["0", "1", "tcp", "none"]  # the faults come first
    assert lines[-2] == f"  {refused.fault}"


def test_processes_that_there_is_no_time_for_are_said_to_be_untried(monkeypatch):
    monkeypatch.setattr(doctor_job, "_CONNECT_S", 0.7)
    monkeypatch.setattr(doctor_job, "_TRIES_S", 2)
    with black_hole() as (address, port):
        peer = types.SimpleNamespace(addresses=[("lo", address, port)] * 2)
        own = types.SimpleNamespace(addresses=[])
        world = types.SimpleNamespace(info=lambda _: peer, transport=lambda _: "tcp", own=own)
        links = doctor_job._try_all(world, 0, 100, {})
    assert [link.other for link in links] == list(range(1, 100))
    assert links[0].fault.startswith(f"{address} port {port}: timed out; {address} port {port}: ")
    untried = f"{address} port {port}: not tried within 2 s"
    assert links[-1].fault == f"{untried}; {untried}"


def test_settings_that_differ_are_listed_with_their_processes():
    found = doctor_job._differing([{"ALGO": "", "NET": "x"}, {"ALGO": "ring", "NET": "x"}, {"ALGO": "", "NET": "x"}])
    assert found == {"JAXRING_ALGO": {"": [0, 2], "ring": [1]}}
