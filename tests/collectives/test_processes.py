"""The tables of cases on ranks of several processes, and that processes and layouts agree on the bits."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from tests.collectives.cases import coll_jobs
from tests.collectives.cases.coll_algorithms import algorithms
from tests.collectives.cases.coll_jobs import merged, once, tables
from tests.collectives.cases.coll_meshes import TABLES as MESH_TABLES
from tests.collectives.cases.coll_ranks import Report
from tests.collectives.cases.coll_tables import TABLES
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

pytestmark = pytest.mark.multiprocess

ALL = tuple(TABLES)
# (processes, devices of each): what they go through. Starting and compiling many processes is what costs.
LAYOUTS = {
    (2, 1): ALL,
    (3, 1): ("reductions", "movements", "algorithms", "roots", "ragged"),
    (4, 1): ("reductions", "movements", "sizes", "point_to_point", "ragged"),
    (7, 1): ("reductions", "movements"),
    (8, 1): ("algorithms", "point_to_point", "ragged"),
    (2, 2): ALL,
    (2, 4): ALL + tuple(MESH_TABLES),
    (4, 2): ("algorithms", *MESH_TABLES),
}
# As `jaxring run` has it, which gives all processes the same environment.
MEMBER = """
import pathlib, runpy, sys
from jaxring.world import launch
launch.initialize()
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# The others differ in numbers only.
QUICK = (2, 2)


@pytest.fixture
def reports(tmp_path_factory, worker_id):
    """reports(layout) -> those of its job, which runs once for all tests and all of pytest's workers."""
    shared = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        shared = shared.parent

    def of(layout):
        processes, devices = layout
        folder = shared / f"tables-{processes}x{devices}"
        return once(folder, lambda: tables(folder, processes, devices, *LAYOUTS[layout]))

    return of


@pytest.mark.parametrize(
    ("layout", "table"),
    [
        pytest.param(layout, table, marks=() if layout == QUICK else pytest.mark.slow)
        for layout, names in LAYOUTS.items()
        for table in names
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_table(reports, layout, table):
    checks, failures, digests = merged(reports(layout), table)
    assert checks > 0
    for name, found in digests.items():
        if name.startswith("deterministic reduce"):
            continue  # each rank has a part of its own
        if len(set(found.values())) > 1:
            failures.append(f"{name}: ranks got different bits: {found}")
    assert not failures, f"{len(failures)} of {checks}:\n" + "\n".join(failures[:40])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(8, 1), (2, 4), (4, 2)], ids=lambda layout: "x".join(map(str, layout)))
def test_deterministic_gives_the_same_bits_in_one_process_and_in_several(ranks, reports, layout):
    report = Report()
    algorithms(ranks(8), report)
    _, _, digests = merged(reports(layout), "algorithms")
    names = [name for name in report.digests if name.startswith("deterministic")]
    assert len(names) >= 9
    differ = [name for name in names if report.digests[name] != digests[name]]
    assert not differ


def test_processes_of_one_host_use_shared_memory(reports):
    assert all("shm" in report["transports"] for report in reports((2, 2)))
    assert all("tcp" not in report["transports"] for report in reports((2, 2)))


def test_processes_that_hash_strings_differently_agree(tmp_path):
    """What a set of strings is made of comes in another order in each process of a job."""
    worker = pathlib.Path(coll_jobs.__file__).with_name("coll_worker.py")
    with Job(tmp_path) as job, coordinator_port() as port:
        for process in range(3):
            env = member(environment(PYTHONHASHSEED=str(process)), f"127.0.0.1:{port}", 3, process)
            job.start([sys.executable, "-c", MEMBER, str(worker), str(tmp_path), "roots", "point_to_point"], env)
        for result in job.wait():
            assert result.code == 0, str(result)
    found = [json.loads((tmp_path / f"{process}.json").read_text()) for process in range(3)]
    for table in ("roots", "point_to_point"):
        checks, failures, _ = merged(found, table)
        assert checks > 0
        assert not failures
