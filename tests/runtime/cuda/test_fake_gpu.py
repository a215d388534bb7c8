"""JAX programs end to end on the CUDA engine's host half, with the fake GPU: planner, handlers, memory, failures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from jaxring.topology.order import Hop, Order
from tests.runtime.cuda.cudahost_jobs import FEATURES, REFUSED, run_job

FAKE = os.environ.get("TEST_CUDA_FAKE", "")
needs_fake = pytest.mark.skipif(not FAKE, reason="TEST_CUDA_FAKE does not name _native_cuda_fake; use make pytest")

_BOTH_MODULES = """
import importlib.util, os
import jaxring._native
spec = importlib.util.spec_from_file_location("_native_cuda_fake", os.environ["TEST_CUDA_FAKE"])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@needs_fake
def test_both_native_modules_load_without_a_warning():
    subprocess.run([sys.executable, "-W", "error", "-c", _BOTH_MODULES], check=True)


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("case", "processes", "devices", "environment"),
    [
        ("collectives", 1, 4, {}),
        ("smoke", 2, 1, {}),
        ("abstract", 1, 4, {}),
        ("abstract", 2, 2, {}),
        ("grows", 2, 1, {"JAXRING_P2P": "staged"}),
        ("joined", 1, 4, {}),
        ("joined", 2, 2, {}),
        ("sharded", 1, 4, {}),
        ("sharded", 2, 2, {}),
        ("ring", 1, 4, {"JAXRING_CUDA_BULK_BYTES": "16"}),
        ("matrix", 1, 1, {}),
        ("several", 1, 2, {}),
        ("shared", 2, 2, {}),
        ("shared", 2, 2, {"JAXRING_P2P": "staged"}),
        ("replays", 2, 2, {"JAXRING_CUDA_BULK_BYTES": "16"}),
        ("copied_switched", 2, 2, {}),
        ("network", 2, 2, {"JAXRING_P2P": "none"}),
        ("epilogues", 1, 4, {}),
        ("epilogues", 2, 2, {}),
        ("epilogues", 2, 1, {"JAXRING_P2P": "staged"}),
        ("epilogues", 2, 2, {"JAXRING_P2P": "none"}),
        ("beside", 1, 2, {}),
        ("beside", 2, 1, {}),
        ("messages", 1, 4, {}),
        ("messages", 2, 2, {"JAXRING_CUDA_BULK_BYTES": "64"}),
        ("messages", 2, 1, {"JAXRING_P2P": "none"}),
    ],
)
@pytest.mark.sampled(7)
def test_collectives_give_what_numpy_gives(case, processes, devices, environment):
    for output in run_job(case, processes, devices, **environment):
        # Processes that end in good order are no news.
        assert "is gone" not in output, output


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (1, 4)])
@pytest.mark.sampled(7)
def test_what_is_built_on_collectives(feature, processes, devices):
    run_job(feature, processes, devices)


# What one engine's collectives need of connections, those of the other one use as well.
@needs_fake
@pytest.mark.multiprocess
def test_a_process_with_both_engines_has_one_network_and_one_planning_thread():
    counted = {}
    for case in ("count_cpu", "count_gpu", "count_cpu_gpu"):
        outputs = run_job(case, 2, 1, JAXRING_P2P="none", JAXRING_SHM_DISABLE="1")
        lines = [line for output in outputs for line in output.splitlines() if line.startswith("COUNTED ")]
        counted[case] = [json.loads(line.removeprefix("COUNTED ")) for line in lines]
    for cpu, gpu, both in zip(*counted.values(), strict=True):
        assert cpu["sockets"] == gpu["sockets"] == both["sockets"] > 0
        needed = {name: max(each["threads"].get(name, 0) for each in (cpu, gpu)) for name in both["threads"]}
        assert both["threads"] == needed
        ours = ("jaxring-io", "jaxring-planner", "jaxring-accept")
        assert [both["threads"][name] for name in ours] == [1, 1, 1]
        assert "jaxring-worker" in cpu["threads"]
        assert "jaxring-worker" not in gpu["threads"]


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize("shm_disable", ["0", "1"])
def test_operations_on_cpus_and_gpus_pass_each_other_on_one_link(shm_disable):
    run_job("crossed", 2, 1, JAXRING_P2P="none", JAXRING_SHM_DISABLE=shm_disable)


_OTHER_HEADERS = (
    _BOTH_MODULES
    + """
import ctypes
other = ctypes.pythonapi.PyCapsule_New
other.restype, other.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
try:
    module.start(0, other(1, b"jaxring.network of other headers", None))
except RuntimeError as error:
    print(error)
"""
)


@needs_fake
def test_modules_that_were_not_built_together_refuse_each_other():
    done = subprocess.run([sys.executable, "-c", _OTHER_HEADERS], capture_output=True, text=True, check=True)
    assert "not built together" in done.stdout
    assert "jaxring.network of other headers" in done.stdout


@needs_fake
@pytest.mark.multiprocess
def test_rings_visit_hosts_in_the_measured_order(tmp_path):
    file = tmp_path / "order.xml"
    file.write_text(Order(tuple(Hop(f"host{host}") for host in (0, 2, 1))).text())
    run_job("ordered", 3, 1, JAXRING_TOPO_FILE=str(file))


@needs_fake
@pytest.mark.multiprocess
def test_ranks_that_share_a_gpu_are_named_in_explain():
    for process, output in enumerate(run_job("smoke", 2, 1, JAXRING_DEBUG="INFO")):
        (said,) = [line for line in output.splitlines() if "GPU communicator of 2 ranks, 2 processes, 1 host" in line]
        assert said.endswith(f": process {process} has rank {process}; process {1 - process} by memory")
        assert any("all_reduce" in line and "; ranks 0 and 1 share fake-0" in line for line in output.splitlines())


@needs_fake
@pytest.mark.multiprocess
def test_ranks_that_share_a_gpu_unasked_are_an_error_that_names_them():
    run_job("unasked", 2, 1, may_share=False, JAXRING_P2P="staged")


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize("case", ["lost_writes", "no_export", "no_import"])
@pytest.mark.sampled(2)
def test_memory_that_cannot_be_shared_is_an_error_that_names_the_pair(case):
    run_job(case, 2, 1)


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize("only", [1, 0])
@pytest.mark.sampled(2)
def test_damaged_messages_are_an_error_on_both_sides(only):
    # A process that is told of damage before its own call has begun does not begin it: the other is told, too.
    faults = {"JAXRING_CHECKSUM": "1", "JAXRING_FAULTS": f"corrupt=1,seed=1,data_only={only}"}
    outputs = run_job("damaged", 2, 1, JAXRING_P2P="none", **faults)
    if only:
        assert all("arrived damaged at rank" in output for output in outputs), outputs
        assert any(re.search(r" of lane \d{1,2}, ", output) for output in outputs), outputs


@needs_fake
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "ahead" else ()) for case in REFUSED]
)
@pytest.mark.sampled(3)
def test_messages_that_cannot_be_served_are_errors(case):
    (output,) = run_job(case, 1, 2)
    assert REFUSED[case] in output, output


@needs_fake
@pytest.mark.multiprocess
def test_a_process_that_ends_fails_the_others():
    outputs = run_job("gone", 2, 1, expected=[0, 3])
    assert "process 1, with which" in outputs[0]


@needs_fake
@pytest.mark.multiprocess
def test_a_process_that_aborts_fails_the_others():
    for output in run_job("aborted", 2, 1):
        assert "process 1 called jaxring.abort(): enough" in output
        assert "ABORTED: " in output


@needs_fake
@pytest.mark.multiprocess
def test_a_process_that_aborts_fails_the_first_calls_of_others():
    run_job("aborted_first", 2, 1, JAXRING_P2P="none")
