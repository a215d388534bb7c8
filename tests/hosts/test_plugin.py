"""Two hosts, as far as jaxring knows, that are joined by a network plugin: our own small one, built for the tests."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from tests.stress.stress_jobs import Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def plugin():
    library = os.environ.get("TEST_NET_PLUGIN")
    if not library:
        pytest.skip("TEST_NET_PLUGIN does not name libnet_plugin.so; use make pytest")
    return library


def run(folder, cases, **extra):
    with coordinator_port() as port, Job(folder) as job:
        for process in range(2):
            env = environment(2, JAXRING_DEBUG="INFO", JAXRING_HOSTID=f"host {process}", **extra)
            job.start([sys.executable, WORKER, *cases], member(env, f"127.0.0.1:{port}", 2, process))
        return job.wait(200)


@pytest.mark.slow
def test_every_collective_goes_by_the_plugin(tmp_path, plugin):
    for result in run(tmp_path, ["core", "messages"], JAXRING_NET=f"plugin:{plugin}"):
        assert result.code == 0, str(result)
        said = [line for line in result.out.splitlines() if line.startswith("transports ")]
        assert said == ['transports ["local", "memory", "plugin"]'] * 2, str(result)
        assert "network plugin Test TCP (ABI v12, 2 device(s): tcp0 tcp1)" in result.err


def test_a_broken_plugin_is_refused_with_its_reason(tmp_path, plugin):
    broken = {"TEST_PLUGIN_BREAK": "isend", "JAXRING_JOIN_TIMEOUT": "20", "NCCL_NET_PLUGIN": plugin}
    first, _ = run(tmp_path, ["messages"], **broken)
    assert first.code != 0
    assert "its ABI v12 is broken: it has no isend" in first.err, str(first)


def test_what_a_plugin_damages_is_told(tmp_path, plugin):
    damage = {"JAXRING_CHECKSUM": "1", "JAXRING_FAULTS": "seed=1,corrupt=1,data_only=1"}
    for result in run(tmp_path, ["messages"], JAXRING_NET=f"plugin:{plugin}", JAXRING_TIMEOUT="60", **damage):
        assert result.code != 0, str(result)
        assert "a message arrived damaged: number 0 of lane" in result.err, str(result)
        assert "has checksum" in result.err, str(result)
