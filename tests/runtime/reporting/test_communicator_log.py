"""The log's line about each communicator."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.errors import JoinError
from jaxring.runtime.reporting.communicator_log import CommunicatorLog, describe


@pytest.mark.parametrize(
    ("owners", "own", "hosts", "ways", "size", "rest"),
    [
        ([0], 0, 1, {}, "1 rank, 1 process, 1 host (device 7)", "process 0 has rank 0"),
        (
            [0, 0, 1, 1, 2, 0],
            0,
            2,
            {1: "shm", 2: "tcp"},
            "6 ranks, 3 processes, 2 hosts (devices 7-12)",
            "process 0 has ranks 0-1, 5; process 1 by shm; process 2 by tcp",
        ),
        (
            [0, 1, 2, 3, 5],
            9,
            2,
            {5: "tcp", 0: "tcp", 1: "tcp", 2: "tcp", 3: "shm"},
            "5 ranks, 5 processes, 2 hosts (devices 7-11)",
            "process 9 has no rank; process 3 by shm; processes 0-2, 5 by tcp",
        ),
    ],
)
def test_what_the_line_says(owners, own, hosts, ways, size, rest):
    devices = range(7, 7 + len(owners))
    assert describe("CPU", devices, owners, own, hosts, ways, {}) == f"CPU communicator of {size}: {rest}"


@pytest.mark.parametrize(
    ("reached", "rest"),
    [
        ((1, 3), "processes 1, 3 by verbs; process 2 cannot be reached: 2 has no port"),
        ((), "processes 1-3 cannot be reached, process 1 because: 1 has no port"),
    ],
)
def test_processes_that_cannot_be_reached_are_no_error(caplog, reached, rest):
    def transport_of(process):
        if process not in reached:
            raise JoinError(f"{process} has no port.")
        return "verbs"

    with caplog.at_level(logging.INFO, logger="jaxring"):
        CommunicatorLog().say("CPU", "it", [0, 1, 2, 3], [0, 1, 2, 3], 0, 4, transport_of)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.endswith(f"process 0 has rank 0; {rest}")


def test_each_communicator_is_logged_once(caplog):
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("a", "b"))

    def run(axes, out, x):
        body = jax.shard_map(lambda x: jaxring.all_reduce(x, axes), mesh=mesh, in_specs=P(("a", "b")), out_specs=out)
        jax.block_until_ready(jax.jit(body)(x))

    with caplog.at_level(logging.INFO, logger="jaxring"):
        for size in (31, 37):
            run("a", P("b"), jnp.ones(4 * size))
            run(("a", "b"), P(), jnp.ones(4 * size))
    lines = [message for r in caplog.records if " communicator of " in (message := r.getMessage())]
    assert sorted(lines) == [
        "CPU communicator of 2 ranks, 1 process, 1 host (devices 0, 2): process 0 has ranks 0-1",
        "CPU communicator of 2 ranks, 1 process, 1 host (devices 1, 3): process 0 has ranks 0-1",
        "CPU communicator of 4 ranks, 1 process, 1 host (devices 0-3): process 0 has ranks 0-3",
    ]
