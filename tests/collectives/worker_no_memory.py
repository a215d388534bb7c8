"""A process of a job in which process 1 gets no memory, time after time; run by test_no_memory.py.

Each time all ranks raise an error that says what could not be had, and the next call works.
"""

from __future__ import annotations

import contextlib
import pathlib
import resource
import sys
import time

import jax
import numpy as np

import jaxring
from tests.collectives.cases.coll_ranks import Ranks

ME = jax.process_index()
SHARED = sys.argv[1] == "shm"
MIB = 1 << 20
# A link takes 512 MiB (JAXRING_BUFFSIZE), scratch an eighth of it, or a sixteenth on a host; all else takes less.
LINK_ROOM, SCRATCH_ROOM = 200 * MIB, 20 * MIB
r = Ranks(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
rows = np.arange(r.n * 5, dtype=np.float32).reshape(r.n, 5)
x = r.put(rows)


@contextlib.contextmanager
def limit(what, value):
    """In process 1 only."""
    before = resource.getrlimit(what)
    if ME == 1:
        resource.setrlimit(what, (value, before[1]))
    yield
    resource.setrlimit(what, before)


def mapped():
    pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def settled():
    """What is mapped once the last operation's memory is given back, which is a moment after its end."""
    deadline = time.monotonic() + 30
    before, now = -1, mapped()
    while now != before:
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.3)
        before, now = now, mapped()
    return now


def compiled(algorithm):
    call = r.compile(lambda v: {"y": jaxring.all_reduce(v, "x", algorithm=algorithm, protocol="simple", timeout=60)})
    return call.lower(x).compile()


def works(call):
    for value in r.values(call(x))["y"].values():
        np.testing.assert_array_equal(value, rows.sum(axis=0))


def fails(call, *words):
    """On every local rank."""
    for shard in call(x)["y"].addressable_shards:
        try:
            np.asarray(shard.data)
        except jax.errors.JaxRuntimeError as error:
            text = str(error)
            missing = [
                word
                for word in (*words, "(process 1 on " if "rank" in words else "process 1 (pid ")
                if word not in text
            ]
            assert not missing, (missing, text)
        else:
            sys.exit(f"no error on {shard.device}")


ring, halving = compiled("ring"), compiled("halving_doubling")
if SHARED:
    with limit(resource.RLIMIT_FSIZE, 4096):
        fails(
            ring, "RESOURCE_EXHAUSTED", "has no memory for a link", "bytes of shared memory", "File too large", "ulimit"
        )
with limit(resource.RLIMIT_AS, mapped() + LINK_ROOM):
    fails(ring, "has no memory for a link", "mapping", "Cannot allocate memory", "JAXRING_BUFFSIZE")
works(ring)
works(halving)
with limit(resource.RLIMIT_AS, settled() + SCRATCH_ROOM):
    fails(halving, "RESOURCE_EXHAUSTED", "rank", "has no memory for", "of scratch", "JAXRING_BUFFSIZE")
works(halving)
works(ring)
print("all told", flush=True)
