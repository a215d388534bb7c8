"""Calls on GPUs that fail: what the error says, and what is reported."""

from __future__ import annotations

import logging
import os
import threading

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _compat
from tests.runtime.cuda.cudahost_engine import RANKS, REAL, engine, error_of, mesh, over, process, processes


class Reported(logging.Handler):
    """Notes that a fault was logged: faults are reported by a thread of their own. Logging itself goes on as before."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.seen = threading.Event()
        logging.getLogger("jaxring.runtime").addHandler(self)

    def emit(self, record):
        print(record.getMessage(), flush=True)
        self.seen.set()


def fails(text, **options):
    engine.start(**options)
    rows = np.ones((RANKS, 4), np.float32)
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d"), rows))
    assert text in told, told


def gone():
    """The last process ends before a call that the others reach: those get errors."""
    engine.start()
    reported = Reported()
    rows = np.ones((RANKS, 4), np.float32)
    spec = P("d")
    call = jax.shard_map(
        lambda v: jaxring.all_reduce(v, "d", timeout=60), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    step = jax.jit(call)
    given = jax.make_array_from_callback(rows.shape, jax.sharding.NamedSharding(mesh, spec), lambda index: rows[index])
    jax.block_until_ready(step(given))
    if process == processes - 1:
        os._exit(3)
    print(error_of(lambda: step(given)))
    again = error_of(lambda: step(given))
    # A device that is lost says so in CUDA's words.
    assert any(word in again for word in ("failed", "gone", *(("LAUNCH_FAILED", "launch failure") if REAL else ()))), (
        again
    )
    assert reported.seen.wait(60), "nothing was reported"


def aborted():
    """The last process aborts: its own calls fail and those of the others, on CPUs and on GPUs."""
    engine.start()
    comm = jaxring.Communicator()
    rows = np.ones((RANKS, 4), np.float32)

    def call():
        return over(lambda v: jaxring.all_reduce(v, "d"), rows)

    call()
    comm.all_reduce(np.ones(4))
    reported = Reported()
    # The abort fails what another process has not finished, too.
    _compat.distributed_state().client.wait_at_barrier("before_the_abort", 60_000)
    if process == processes - 1:
        jaxring.abort("enough")
    else:
        assert reported.seen.wait(60), "nothing was reported"
    print(error_of(call))
    with pytest.raises(jaxring.JaxringError, match=r"called jaxring.abort\(\): enough"):
        comm.all_reduce(np.ones(4))


def aborted_first():
    """The last process aborts before the others' first call on GPUs, for which they would wait: it fails at once."""
    engine.start()
    comm = jaxring.Communicator()
    comm.all_reduce(np.ones(4))
    client = _compat.distributed_state().client
    client.wait_at_barrier("before_the_abort", 60_000)
    rows = np.ones((RANKS, 4), np.float32)
    if process == processes - 1:
        jaxring.abort("enough")
        client.wait_at_barrier("after_the_abort", 90_000)
        return
    # Twice: the second call is made when the abort is known in any case.
    for shape in (rows, np.ones((RANKS, 8), np.float32)):
        told = error_of(lambda shape=shape: over(lambda v: jaxring.all_reduce(v, "d", timeout=60), shape))
        assert "called jaxring.abort(): enough" in told, told
    client.wait_at_barrier("after_the_abort", 90_000)


def damaged():
    """JAXRING_FAULTS damages what goes over the network, and checksums tell."""
    engine.start()
    reported = Reported()
    print(
        error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", timeout=20), np.ones((RANKS, 50_000), np.float32)))
    )
    assert reported.seen.wait(60), "nothing was reported"


def ahead():
    """As many messages as a queue holds, and then one more."""
    from tests.runtime.cuda import cudahost_messages

    engine.start()
    jax.block_until_ready(cudahost_messages.ahead(16, timeout=60)())
    refused("ahead", 17, 1)


def refused(which, *args):
    """What a program is refused for is logged; it fails itself, or loses its device."""
    from tests.runtime.cuda import cudahost_messages

    engine.start()
    reported = Reported()
    print(error_of(getattr(cudahost_messages, which)(*args)))
    assert reported.seen.wait(60), "nothing was reported"
