"""Processes of a job take the measured order of hosts where all have the same one."""

from __future__ import annotations

import os
import sys

import pytest

from jaxring.topology import order as orders
from jaxring.topology.order import Hop, Order
from tests import starting

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

# Each process is a host of its own, by a name of its own.
JOB = """
import os, socket, sys
process = int(os.environ["JAX_PROCESS_ID"])
os.environ["XDG_CACHE_HOME"] = sys.argv[1 + process]
socket.gethostname = lambda: f"host{process}"
import numpy as np
import jaxring
from jaxring.world import launch
launch.initialize()
comm = jaxring.Communicator()
total = comm.all_reduce(np.full(1024, process, np.float32))
assert (total == 3).all()
print("took " + jaxring.explain().partition("; ")[2])
"""


def run(tmp_path, *caches):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", str(script), *map(str, caches)]
    env = os.environ | {"JAXRING_ALGO": "ring"}
    done = starting.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    took = [line.partition("took ")[2] for line in done.stdout.splitlines() if "took " in line]
    assert len(took) == 3
    assert took[0] == took[1] == took[2]
    return took[0], done.stderr


def saved(monkeypatch, cache, *hosts):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return orders.save(Order(tuple(Hop(host) for host in hosts)))


def test_one_order_is_taken(monkeypatch, tmp_path):
    path = saved(monkeypatch, tmp_path / "a", "host0", "host2", "host9", "host1")
    took, err = run(tmp_path, *[tmp_path / "a"] * 3)
    assert took.endswith(f"hosts in the order of {path}: host0, host2, host1")
    assert "order" not in err


def test_two_orders_leave_it_to_that_of_ranks(monkeypatch, tmp_path):
    saved(monkeypatch, tmp_path / "a", "host0", "host2", "host1")
    saved(monkeypatch, tmp_path / "b", "host0", "host1", "host2")
    took, err = run(tmp_path, tmp_path / "a", tmp_path / "a", tmp_path / "b")
    assert "hosts in the order of ranks, because processes have different measured orders" in took
    assert "process 0" in err
    assert "process 2" in err
    assert "have different measured orders of hosts (`jaxring tune --ranks`)" in err


def test_an_order_that_lacks_a_host_is_not_taken(monkeypatch, tmp_path):
    path = saved(monkeypatch, tmp_path / "a", "host0", "host1")
    took, _ = run(tmp_path, *[tmp_path / "a"] * 3)
    assert took.endswith(f"hosts in the order of ranks, because host host2 is not in {path}")
