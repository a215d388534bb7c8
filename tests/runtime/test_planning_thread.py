"""The planning thread and what it remembers, where a process goes on in another job of jax.distributed."""

from __future__ import annotations

import os
import sys
import types

import pytest

from jaxring.runtime.placement import RankPlace
from jaxring.runtime.planner import _key, _start
from tests import starting

# The watch fails at each look, and the process is renumbered in between.
WATCHED = """
import time
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from jaxring import _compat
from jaxring.runtime import service

made, looked = [], []

class Watch:
    def __init__(self, native, process):
        made.append(process)

    def look(self, now):
        looked.append(made[-1])
        raise RuntimeError("a fault of the watch")

service.StragglerWatch = Watch
import jaxring

mesh = Mesh(np.array(jax.devices()), ("x",))

def total(add):
    f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v + add, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    return float(f(np.ones(2, np.float32))[0])

assert total(0) == 2
for process in (3, 1):
    _compat.distributed_state = lambda: _compat.DistributedState(None, process, 4, "a:1")
    while process not in looked:
        time.sleep(0.01)
    assert total(process) == 2 + 2 * process
assert made == looked == [3, 1], (made, looked)
"""


def logged(text):
    """What a process of two devices that runs this program, and ends well, has logged."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "JAXRING_TIMEOUT": "20"}
    done = starting.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_planning_goes_on_where_the_watch_for_stragglers_fails_and_another_process_number_has_another():
    assert logged(WATCHED).count("this process looks no more") == 2


# The engine for GPUs fails each time that it is served, and the system has no thread for the first plan.
NO_THREADS = """
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from jaxring.runtime import service

starts, start = [], service.daemons.start

def serve():
    raise RuntimeError("a fault of the CUDA engine")

def start_later(name, *rest):
    starts.append(name)
    if len(starts) == 1:
        raise RuntimeError("can't start new thread")
    start(name, *rest)

service.cuda_service.started, service.cuda_service.serve, service.daemons.start = lambda: True, serve, start_later
import jaxring

mesh = Mesh(np.array(jax.devices()), ("x",))

def total(add):
    f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v + add, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    return float(f(np.ones(2, np.float32))[0])

try:
    total(0)
except jax.errors.JaxRuntimeError as error:
    assert "can't start new thread" in str(error), error
else:
    raise AssertionError("the first call succeeded")
assert total(1) == 4
"""


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_planning_goes_on_where_the_system_has_no_thread_or_the_cuda_engine_fails():
    assert "serving the CUDA engine failed" in logged(NO_THREADS)


def test_a_job_that_replaces_another_has_other_keys():
    placement = [RankPlace(process=p, device=p) for p in range(2)]
    request = types.SimpleNamespace(spec="{}", ordinal=0)

    def key(token, half="both", own=0):
        infos = {p: types.SimpleNamespace(token=f"{token}{p}") for p in range(2)}
        spec = types.SimpleNamespace(half=half, tag=0, perm=((0, 1),))
        world = types.SimpleNamespace(info=infos.__getitem__, process=own)
        return _key(request, spec, placement, 0, _start(placement, world))

    assert key("one") == key("one", own=1) != key("two")
    assert key("one", "send") == key("one", "recv", own=1) != key("two", "send")
