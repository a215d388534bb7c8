"""A job over TLS with somebody in the middle who changes bytes: both sides say so, and a handshake is tried again."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from tests.hosts.hosts_between import Between
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_hosts.py")

pytestmark = pytest.mark.multiprocess

# The connections that process 0 makes, in their order: the first one's handshake is altered, the next is not for data.
ALTERED, _, DATA = range(3)
# What the acceptor says before TLS begins has some 110 bytes; then comes its part of the handshake.
IN_HANDSHAKE = 150


def last(job, process, word):
    lines = [line for line in job.text(process).splitlines() if line.startswith(word + " ")]
    return json.loads(lines[-1].partition(" ")[2])


def test_a_byte_that_is_changed_on_the_way(tmp_path):
    with Between() as between, coordinator_port() as port, Job(tmp_path) as job:
        between.alter(ALTERED, False, IN_HANDSHAKE)
        for process in range(2):
            env = environment(
                2, JAXRING_NET="TLS", JAXRING_SHM_DISABLE="1", FOLDER=str(tmp_path), BETWEEN=str(between.port)
            )
            command = [sys.executable, "-X", "faulthandler", WORKER, "altered"]
            job.start(command, member(env, f"127.0.0.1:{port}", 2, process))
        job.wait_for_line(1, "listens")
        between.forward_to(last(job, 1, "port"))
        for process in range(2):
            job.wait_for_line(process, "ready")
        (first,) = last(job, 0, "tries")
        assert "cannot be encrypted: the TLS handshake failed" in first
        assert between.altered == 1
        between.alter(DATA, True)
        for process in range(2):
            job.wait_for_line(process, "raised")
        assert between.altered == 2
        (tmp_path / "over").touch()
        results = job.wait(60)
    assert all(result.code == 0 for result in results), str(job)
    for process in range(2):
        texts = last(job, process, "errors")
        assert len(texts) == 2  # each of its ranks raises
        for text in texts:
            assert "what came is not what the peer sent (TLS: " in text, text
            assert "an attacker on the way has changed the data" in text, text
            assert "all_reduce" in text
            assert f"(process {1 - process} on" in text or "was the first to see it" in text, text
