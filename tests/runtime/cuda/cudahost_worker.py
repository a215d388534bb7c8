"""One process of a job: `python cudahost_worker.py CASE PROCESS PROCESSES DEVICES PORT`.

On the fake GPU where TEST_CUDA_FAKE names its module, on real ones otherwise.
"""

from __future__ import annotations

import functools
import os

# Before jax, as it says.
from tests.runtime.cuda.cudahost_engine import RANKS, REAL, case, engine, process, processes  # isort: split

import jax.numpy as jnp
import numpy as np

from jaxring import _compat
from tests.runtime.cuda.cudahost_failures import aborted, aborted_first, ahead, damaged, fails, gone, refused
from tests.runtime.cuda.cudahost_jobs import FEATURES
from tests.runtime.cuda.cudahost_values import (
    abstract,
    collectives,
    copied,
    explained,
    grows,
    independent,
    joined,
    loop,
    memory,
    not_switched,
    ordered,
    over_rdma,
    replays,
    sharded,
    smoke,
    switched,
    traced_again,
)


def start_apart():
    """Starts the engine with a GPU for each rank."""
    engine.start(**({} if REAL else {"apart": True}))


def matrix():
    """Ranks of one process that share two GPUs, without XLA, and two domains that the proxy threads connect."""
    from benchmarks.gpu.standalone import Ranks
    from tests.runtime.cuda import cudahost_matrix

    if REAL:
        engine.start_alone()
        cudahost_matrix.matrix(engine.native, (2, 4, 8), (1, 1000, 65537), cudahost_matrix.ALL_DTYPES, engine.THREADS)
    else:
        engine.start()
        cudahost_matrix.matrix(engine.native, (3,), (1, 700), (np.float32, jnp.bfloat16), engine.THREADS)
    if why_not := cudahost_matrix.through_the_switch(engine.native, (1, 7000), engine.THREADS):
        assert REAL, why_not
        print("nvls is left out:", why_not)
    apart = Ranks(engine.native, 4, placement=(0, 0, 1, 1), threads=engine.THREADS)
    cudahost_matrix.check(apart, "all_reduce", "hier_ring", "ll", np.float32, 3000)
    cudahost_matrix.check(apart, "all_to_all", "direct", "simple", np.int32, 3000)


def messages():
    from tests.runtime.cuda import cudahost_messages

    engine.start()
    cudahost_messages.messages(2000)
    if RANKS % 2 == 0 and RANKS > 2:
        cudahost_messages.in_groups()


def started():
    """How many collectives have gone beside other work so far."""
    return engine.native.counters().get("started", 0)


def applied():
    from tests.runtime.cuda import cudahost_epilogues

    engine.start()
    cudahost_epilogues.everything(started)


def beside():
    from tests.runtime.cuda import cudahost_beside

    engine.start()
    cudahost_beside.values(started)
    if processes == 1:
        cudahost_beside.overlap(lambda: engine.native.counters()["in_flight"])


def features(name):
    from tests.runtime.cuda import cudahost_features

    engine.start()
    getattr(cudahost_features, name)()


def together():
    from tests.runtime.cuda import cudahost_together

    return cudahost_together


CASES = {}
CASES["matrix"] = matrix
CASES["collectives"] = lambda: (engine.start(), collectives(), loop(), traced_again(), not_switched())
CASES["smoke"] = lambda: (engine.start(), smoke(), memory())
CASES["abstract"] = lambda: (engine.start(), abstract())
CASES["grows"] = lambda: (engine.start(), grows())
CASES["joined"] = lambda: (engine.start(), joined())
CASES["sharded"] = lambda: (engine.start(), sharded())
CASES["ring"] = lambda: (engine.start(), collectives(algorithm="ring", protocol="ll"))
CASES["network"] = lambda: (engine.start(), collectives(), explained("network"))
CASES["ordered"] = ordered
CASES["shared"] = lambda: (engine.start(), collectives(), explained("ipc"), memory(), loop(), traced_again())
CASES["several"] = lambda: (engine.start(), collectives(), explained("p2p"), memory(), loop())
CASES["copied"] = lambda: (engine.start(), copied())
CASES["switched"] = lambda: (start_apart(), switched())
CASES["copied_switched"] = lambda: (start_apart(), copied(), switched())
CASES["replays"] = lambda: (engine.start(), replays(), independent())
CASES["lost_writes"] = lambda: fails("ACS", lose_writes=True)
CASES["no_export"] = lambda: fails("cannot be shared with other processes", no_export=True)
CASES["no_import"] = lambda: fails("cannot map device memory", no_import=True)
CASES["unasked"] = lambda: fails("ranks 0 and 1 share fake-0. They would divide its thread blocks")
CASES["gone"] = gone
CASES["aborted"] = aborted
CASES["aborted_first"] = aborted_first
CASES["over_rdma"] = over_rdma
CASES["damaged"] = damaged
CASES["beside"] = beside
CASES["epilogues"] = applied
CASES["messages"] = messages
for feature in FEATURES:
    CASES[feature] = functools.partial(features, feature)
CASES["crossed"] = lambda: together().crossed()
for engines in ("cpu", "gpu", "cpu_gpu"):
    CASES[f"count_{engines}"] = functools.partial(lambda names: together().count(*names.split("_")), engines)
CASES["disagree"] = lambda: refused("disagree")
CASES["ahead"] = ahead
for what in ("disagree", "negative", "input", "output"):
    CASES[f"sizes_{what}"] = functools.partial(refused, "bad_sizes", what)
REFUSED = [name for name in CASES if name in ("disagree", "ahead") or name.startswith("sizes_")]

CASES[case]()
if processes > 1 and case != "gone":
    # Who fails first must not take the others' connections away.
    _compat.distributed_state().client.wait_at_barrier("cudahost_end", 60_000)
print("OK", case, process, flush=True)
if case == "gone" or (REAL and case in REFUSED):
    os._exit(0)  # JAX would wait for the other, or for the device
