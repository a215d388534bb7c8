"""What else a process does with its programs: stages, threads, other backends and transformations, a job's cache."""

from __future__ import annotations

import pathlib
import sys
import threading

import jax
import numpy as np
import pytest
from jaxlib import _xla

import jaxring
from jaxring._protobuf import Message
from jaxring.dropin.whole_program.hlo import Module
from jaxring.dropin.whole_program.transformation import transform
from tests.dropin.whole_program.wp_programs import left, matrix, mesh
from tests.stress.stress_jobs import Job, environment, run_job

HERE = pathlib.Path(__file__).parent
GRID = mesh((4, 2))


def test_it_is_the_compilation_that_counts_not_the_lowering():
    """Of what the partitioner inserts, which it does while it compiles."""
    x = matrix(GRID, "x", "y")
    outside = jax.jit(lambda x: x.sum(0)).lower(x)
    with jaxring.installed(whole_program=True):
        inside = jax.jit(lambda x: x.sum(1)).lower(x)
        assert not left(outside.compile())
    assert left(inside.compile())


@pytest.mark.parametrize("ours_first", [False, True])
def test_transformations_of_others_come_in_the_order_of_registration(ours_first):
    x = matrix(GRID, "x", "y")
    if ours_first:
        jaxring.install(whole_program=True)
    seen: list[bool] = []
    _xla.register_xla_transform("theirs", 0, lambda data: seen.append(b"jaxring_all_reduce" in data))
    try:
        jaxring.install(whole_program=True)
        assert not left(jax.jit(lambda x: x.sum(0)).lower(x).compile())
        assert seen == [ours_first]
        jaxring.uninstall()
        assert left(jax.jit(lambda x: x.sum(0)).lower(x).compile())
        assert seen == [ours_first, False]
    finally:
        jaxring.uninstall()
        assert _xla.clear_xla_transform("theirs", 0)


def test_programs_of_replicas_stay_with_xla_and_are_said():
    """JAX makes none any more; XLA still has them."""
    modules: list[bytes] = []
    _xla.register_xla_transform("reads", 0, modules.append)
    try:
        jax.jit(lambda x: x.sum(0)).lower(matrix(GRID, "x", "y")).compile()
    finally:
        _xla.clear_xla_transform("reads", 0)
    (data,) = modules
    assert transform(data) is not None
    message = Module(data).message
    devices = [value for number, _, value in message.fields if number == 15]
    message.fields = [field for field in message.fields if field[0] != 15]
    (assignment,) = map(Message, devices)
    swapped = [(1, assignment.number(2)), (2, assignment.number(1))]
    message.add(15, Message.of(*swapped, *((n, v) for n, _, v in assignment.fields if n > 2)))
    assert transform(bytes(message)) is None
    assert "in jit__lambda: XLA's own collective: the program has replicas" in jaxring.explain()


def test_threads_that_compile_and_run():
    x = matrix(GRID, "x", "y")
    data = np.asarray(x)
    failed = []

    def work(number):
        try:
            for scale in range(1, 4):
                f = jax.jit(lambda x: (x * (10 * number + scale)).sum(number % 2))  # noqa: B023
                np.testing.assert_array_equal(f(x), (data * (10 * number + scale)).sum(number % 2))
        except BaseException as error:
            failed.append(error)

    with jaxring.installed(whole_program=True):
        operations = jaxring.counters()["operations"]
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert jaxring.counters()["operations"] >= operations + 12


TWO_BACKENDS = """
import jax, numpy as np
from jax.extend.backend import register_backend_factory
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxlib import xla_client
register_backend_factory("other", lambda: xla_client.make_cpu_client(num_devices=4), priority=-10)
import jaxring
jaxring.install(whole_program=True)
f = jax.jit(lambda x: x.sum(0))
for name in ("other", "cpu", "other"):
    devices = np.array(jax.devices(name))
    values = np.arange(3 * devices.size, dtype=np.float32).reshape(-1, 3)
    mesh = Mesh(devices, ("x",), axis_types=(AxisType.Auto,))
    before = jaxring.counters()["operations"]
    np.testing.assert_array_equal(f(jax.device_put(values, NamedSharding(mesh, P("x")))), values.sum(0))
    print(name, devices.size, jaxring.counters()["operations"] - before)
"""


def test_several_backends(tmp_path):
    with Job(tmp_path) as job:
        job.start([sys.executable, "-c", TWO_BACKENDS], environment(8, JAX_PLATFORMS="cpu,other"))
        (result,) = job.wait(100)
    assert (result.code, result.out.split("\n")[:-1]) == (0, ["other 4 1", "cpu 8 1", "other 4 1"]), str(result)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_job_s_persistent_cache(tmp_path):
    """Process 0 alone writes entries and finds them; the others compile what it has found, and are understood."""
    cache = tmp_path / "cache"
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    entries = []
    for turn, install in enumerate(("", "whole", "whole", "")):
        folder = tmp_path / str(turn)
        folder.mkdir()
        outputs = run_job(folder, [str(HERE / "wp_unchanged.py")], 2, 2, JAXRING_INSTALL=install, **settings)
        # Gloo says in lines before whom it has connected.
        assert [out.splitlines()[-1].strip() for out in outputs] == [f"right {install}".strip()] * 2
        entries.append(len(list(cache.glob("jit_inserted*-cache"))))
    assert entries == [1, 2, 2, 2]
