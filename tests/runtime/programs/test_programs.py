"""Programs that are kept, moved and compiled ahead; processes that begin and end in every way; memory."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from tests.stress.stress_jobs import Job, coordinator_port, environment, member, run_job

WORKER = str(pathlib.Path(__file__).parent / "worker_programs.py")
ORDERS = str(pathlib.Path(__file__).parent / "worker_orders.py")

layouts = pytest.mark.parametrize(
    ("processes", "devices"),
    [(1, 4), pytest.param(2, 2, marks=pytest.mark.multiprocess)],
    ids=["1x4", "2x2"],
)


def run(tmp_path, case, *arguments, processes=1, devices=4):
    folder = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    folder.mkdir()
    return run_job(folder, [WORKER, case, *map(str, arguments)], processes, devices)


@layouts
@pytest.mark.sampled(2)
def test_the_persistent_compilation_cache_is_hit(tmp_path, processes, devices):
    cache = tmp_path / "cache"
    first = run(tmp_path, "cached", cache, processes=processes, devices=devices)
    second = run(tmp_path, "cached", cache, processes=processes, devices=devices)
    # In a job, JAX lets process 0 alone write entries and find them; all processes have checked their results.
    assert json.loads(first[0].splitlines()[-1]) == [0, 1]
    assert json.loads(second[0].splitlines()[-1]) == [1, 0]


@layouts
@pytest.mark.sampled(2)
def test_an_exported_program_runs_in_another_process(tmp_path, processes, devices):
    path = tmp_path / "program"
    run(tmp_path, "save", path, processes=processes, devices=devices)
    run(tmp_path, "load", path, processes=processes, devices=devices)


def test_exporting_without_the_exemption_names_the_target(tmp_path):
    run(tmp_path, "refused")


@layouts
@pytest.mark.sampled(2)
def test_programs_compiled_ahead_and_shapes(tmp_path, processes, devices):
    run(tmp_path, "ahead", processes=processes, devices=devices)


@pytest.mark.multiprocess
def test_alike_programs_in_another_order_never_mix(tmp_path):
    run_job(tmp_path, [ORDERS, "alike"], 4)


@pytest.mark.multiprocess
def test_programs_in_opposite_orders_cannot_all_end_well(tmp_path):
    run_job(tmp_path, [ORDERS, "opposite_orders"], 2)


def test_import_is_clean_and_leaves_no_thread_that_keeps_the_process(tmp_path):
    with Job(tmp_path) as job:
        job.start([sys.executable, "-X", "dev", "-W", "error", "-c", "import jaxring"], environment(2))
        (result,) = job.wait(60)
    assert result.code == 0, str(result)
    assert result.out == result.err == "", str(result)


@pytest.mark.parametrize(
    ("case", "code", "says"),
    [
        ("imports_and_ends", 0, ""),
        ("ends_after_dispatch", 0, ""),
        ("ends_by_raising", 1, "ValueError: the reason, with 3 results to come"),
        ("ends_by_sys_exit", 3, ""),
        ("ends_while_threads_work", 0, ""),
    ],
)
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.sampled(4)
def test_a_process_ends(tmp_path, case, code, says, devices):
    with Job(tmp_path) as job:
        job.start([sys.executable, "-X", "dev", WORKER, case], environment(devices))
        (result,) = job.wait(60)
    assert result.code == code, str(result)
    lines = result.err.splitlines()
    assert lines[-1:] == ([says] if says else []), str(result)
    if not says:
        assert lines == []


@pytest.mark.multiprocess
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.sampled(2)
def test_a_process_ends_while_it_waits_for_a_peer(tmp_path, transport):
    with coordinator_port() as port, Job(tmp_path) as job:
        env = environment(2, JAXRING_SHM_DISABLE=str(int(transport == "tcp")))
        processes = []
        for process in range(2):
            own = member(env, f"127.0.0.1:{port}", 2, process)
            command = [
                sys.executable,
                "-X",
                "faulthandler",
                WORKER,
                "ends_while_waiting_for_a_peer",
                str(tmp_path / "flag"),
            ]
            processes.append(job.start(command, own))
        processes[1].wait(60)
        (tmp_path / "flag").touch()
        results = job.wait(60)
    for result in results:
        assert result.code == 0, str(result)
        assert "Fatal" not in result.err, str(result)
        assert "terminate" not in result.err, str(result)
    assert results[1].out.splitlines()[-1] == "leaves"


def test_a_spawned_child_uses_jaxring_by_itself(tmp_path):
    run(tmp_path, "spawns")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "devices", "shm_disable"),
    [
        (1, 4, "0"),
        pytest.param(2, 1, "0", marks=pytest.mark.multiprocess),
        pytest.param(2, 1, "1", marks=pytest.mark.multiprocess),
    ],
    ids=["1x4", "2x1 shm", "2x1 tcp"],
)
def test_launches_do_not_keep_memory(tmp_path, processes, devices, shm_disable):
    # A fixed threshold has malloc give large blocks back, so that what is measured is what is in use.
    extra = {"JAXRING_SHM_DISABLE": shm_disable, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    outputs = run_job(tmp_path, [WORKER, "launches_keep_memory"], processes, devices, **extra)
    for out in outputs:
        assert int(out.splitlines()[-1]) < 60


@pytest.mark.slow
@layouts
def test_programs_that_are_dropped_take_their_call_sites_along(tmp_path, processes, devices):
    for out in run(tmp_path, "programs_are_released", processes=processes, devices=devices):
        found = json.loads(out.splitlines()[-1])
        assert found["grown"] < 60
        before, after = found["sites"]
        assert after <= before + 4, found
