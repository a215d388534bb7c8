"""The CUDA engine on a real GPU, which several ranks and several processes share."""

from __future__ import annotations

import importlib.util
import os

import pytest

from tests.runtime.cuda.cudahost_jobs import FEATURES, REFUSED, run_job

pytestmark = [pytest.mark.gpu, pytest.mark.multiprocess, pytest.mark.timeout(600)]


def _why_not() -> str:
    if importlib.util.find_spec("jaxring._native_cuda") is None:
        return "jaxring was built without CUDA"
    import jaxring._native_cuda as native

    return "" if native.device_count() else "there is no NVIDIA GPU"


WHY_NOT = _why_not()
needs_gpu = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(autouse=True)
def _no_fake(monkeypatch):
    monkeypatch.delenv("TEST_CUDA_FAKE", raising=False)
    # The GPU's own: pytest's process is told to use CPUs only.
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    # The tests' own flags are about CPUs; programs for the GPU are compiled as users' are.
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert "TEST_CUDA_FAKE" not in os.environ


@needs_gpu
def test_ranks_of_one_process_share_a_gpu():
    run_job("matrix", 1, 1)


@needs_gpu
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_a_gpu_under_jax(processes):
    run_job("shared", processes, 1)


def _why_not_several() -> str:
    if WHY_NOT:
        return WHY_NOT
    import jaxring._native_cuda as native

    return "" if native.device_count() > 1 else "a process needs several GPUs, and there is one"


@pytest.mark.skipif(bool(_why_not_several()), reason=_why_not_several())
@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_with_several_gpus(processes):
    run_job("several", processes, 2)


@needs_gpu
def test_copy_engines():
    run_job("copied", 2, 1)


def _why_no_switch() -> str:
    if WHY_NOT:
        return WHY_NOT
    import jaxring._native_cuda as native

    if native.device_count() < 2:
        return "each rank needs a GPU of its own, and there is one"
    return "" if native.has_multicast(0) and native.has_multicast(1) else "the driver reports no multicast (NVLS)"


@pytest.mark.skipif(bool(_why_no_switch()), reason=_why_no_switch())
def test_the_switch():
    run_job("switched", 2, 1)


@needs_gpu
@pytest.mark.parametrize("case", ["shared", "replays", "messages"])
def test_bulk_copies(case):
    run_job(case, 2, 1, JAXRING_CUDA_BULK_BYTES="16")


@needs_gpu
def test_replays():
    run_job("replays", 2, 1)


@needs_gpu
def test_a_graph_is_updated_with_buffers_that_are_elsewhere():
    run_job("grows", 2, 1)


@needs_gpu
def test_processes_that_share_a_gpu_by_tcp():
    run_job("network", 2, 1, JAXRING_P2P="none", JAXRING_SHM_DISABLE="1")


def _why_no_nic() -> str:
    if WHY_NOT:
        return WHY_NOT
    from jaxring.topology.ports import ports

    return "" if any(port.state == "active" for port in ports()[0]) else "there is no active RDMA port"


@pytest.mark.skipif(bool(_why_no_nic()), reason=_why_no_nic())
def test_gpudirect_rdma():
    # Over one host's NIC, which its own messages go through. In a virtual machine it may seem far from the GPU.
    environment = {"JAXRING_NET": "IB", "JAXRING_NET_GDR_LEVEL": "SYS", "JAXRING_DEBUG": "INFO"}
    run_job("over_rdma", 2, 1, JAXRING_P2P="none", JAXRING_SHM_DISABLE="1", **environment)


@needs_gpu
def test_an_abstract_mesh():
    run_job("abstract", 2, 1)


@needs_gpu
@pytest.mark.parametrize("case", ["joined", "sharded"])
def test_collectives_that_the_compiler_inserts(case):
    run_job(case, 2, 1)


@needs_gpu
@pytest.mark.parametrize("feature", FEATURES)
def test_what_is_built_on_collectives(feature):
    run_job(feature, 2, 1)


@needs_gpu
def test_staged_buffers():
    run_job("shared", 2, 1, JAXRING_P2P="staged")


@needs_gpu
def test_programs_without_command_buffers():
    run_job("shared", 2, 1, XLA_FLAGS="--xla_gpu_enable_command_buffer=")


@needs_gpu
def test_a_process_that_ends_fails_the_others():
    outputs = run_job("gone", 2, 1, expected=[0, 3])
    assert "process 1, with which" in outputs[0]


@needs_gpu
@pytest.mark.parametrize("environment", [{}, {"JAXRING_P2P": "none"}])
def test_messages_and_ragged_parts(environment):
    run_job("messages", 2, 1, **environment)


@needs_gpu
@pytest.mark.parametrize("case", ["disagree", "sizes_disagree", "sizes_input"])
def test_messages_that_cannot_be_served_are_errors(case):
    # The rank that finds it out loses its device; the other one learns of that process's end, or of its deadline.
    outputs = run_job(case, 2, 1)
    assert any(REFUSED[case] in output for output in outputs), outputs


@needs_gpu
@pytest.mark.parametrize("environment", [{}, {"JAXRING_P2P": "none"}])
def test_epilogues(environment):
    run_job("epilogues", 2, 1, **environment)


@needs_gpu
def test_starts_run_beside():
    run_job("beside", 2, 1)
