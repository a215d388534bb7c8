"""A process that gets signals while it waits for others: `python worker_waits.py CASE`.

It says "waits NAME" before each wait and what that ended with after it, and goes on.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start

FOLDER = pathlib.Path(os.environ.get("FOLDER", "."))
LIMIT_S = 100.0


def say(word, **more):
    print(word, json.dumps(more), flush=True)


def say_inside(name, ended):
    """The test sends a signal when this says that the process is inside."""
    while jaxring.counters()["in_flight"] == 0 and not ended.is_set():
        time.sleep(0.01)
    say(f"waits {name}")


def ends(name, wait):
    """Says what a wait raised."""
    ended = threading.Event()
    threading.Thread(target=say_inside, args=(name, ended), daemon=True).start()
    try:
        wait()
    except (KeyboardInterrupt, Exception) as error:
        ended.set()
        say(f"ended {name}", kind=type(error).__name__, text=str(error))
    else:
        sys.exit(f"{name}: no error")


def await_file(name):
    deadline = time.monotonic() + LIMIT_S
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.02)


def sums(mesh):
    a = rows(mesh.size, 16, "float32")
    check(over(mesh, lambda v: jaxring.all_reduce(v, AXIS))(put(mesh, a)), same(a.sum(0), mesh.size))


def alone():
    """Ranks of one process: a message that nobody sends is waited for."""
    mesh = start()
    x = put(mesh, rows(mesh.size, 3, "float32"))

    def message(tag, timeout):
        def program(v):
            got, token = jaxring.recv(jax.ShapeDtypeStruct((3,), jnp.float32), AXIS, [(0, 1)], tag=tag, timeout=timeout)
            return got + v + token

        local = jax.shard_map(
            lambda v: program(v[0])[None],
            mesh=mesh,
            in_specs=P(AXIS),
            out_specs=P(AXIS),
            check_vma=False,
        )
        return jax.jit(local)(x)

    sums(mesh)
    ends("value", lambda: np.asarray(message(1, 90).addressable_shards[1].data))
    sums(mesh)
    ends("block", lambda: jax.block_until_ready(message(2, 90)))
    sums(mesh)
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    ends("own handler", lambda: np.asarray(message(3, 3).addressable_shards[1].data))
    ends("own handler twice", lambda: np.asarray(message(4, 90).addressable_shards[1].data))
    say("handled", times=len(seen))
    sums(mesh)
    ends("term", lambda: np.asarray(message(5, 90).addressable_shards[1].data))


def job():
    """Process 2 does not come where the others wait for it."""
    mesh = start()
    me = jax.process_index()
    x = put(mesh, rows(mesh.size, 16, "float32"))
    call = over(mesh, lambda v: jaxring.all_reduce(v, AXIS, timeout=90))
    short = over(mesh, lambda v: jaxring.all_reduce(v, AXIS, timeout=4))

    def wait():
        jax.block_until_ready(call(x))

    if me == 2:
        await_file("joins")
        ends("told", wait)
    else:
        ends("join", wait)
    await_file("all come")
    wait()
    communicator = jaxring.Communicator(timeout=90)
    if me == 2:
        await_file("late")
    ends("communicator", lambda: communicator.all_reduce(np.ones(3)))
    assert communicator.all_reduce(np.ones(3))[0] == 3
    if me == 2:
        await_file("over")
        os._exit(0)
    if me == 1:
        multihost_utils.reached_preemption_sync_point(0)
    ends("noticed", lambda: jax.block_until_ready(short(x)))
    say("goes on")
    ends("term", wait)
    assert me == 0
    # Without those that are lost: process 2 lives, and does not come.
    pair = Mesh(mesh.devices[[0, 2]], (AXIS,))
    last = over(pair, lambda v: jaxring.all_reduce(v, AXIS, timeout=90))
    threading.Thread(target=say_inside, args=("end", threading.Event()), daemon=True).start()
    jax.block_until_ready(last(put(pair, rows(2, 16, "float32"))))


if __name__ == "__main__":
    jax.config.update("jax_enable_recoverability", True)
    globals()[sys.argv[1]]()
