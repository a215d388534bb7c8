"""Jobs that go on after processes were lost."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tests.collectives.cases.coll_jobs import run_job
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

HERE = pathlib.Path(__file__).parent


def test_a_job_survives_aborts_kills_and_rebuilds(tmp_path):
    script = HERE / "recovery_job.py"
    code, output = run_job(script, 3, 2, str(tmp_path), options=("--restart", "3", "--restart-delay", "0"))
    assert code == 0, output[-6000:]
    assert len(list(tmp_path.glob("done *"))) == 3, output[-6000:]
    assert output.count("it is started again") == 3


@pytest.mark.parametrize(("kind", "environ"), [("RssShmem", {}), ("RssAnon", {"JAXRING_SHM_DISABLE": "1"})])
@pytest.mark.sampled(2)
def test_a_suspended_process_holds_what_it_held_before_its_first_link(kind, environ):
    code, output = run_job(HERE / "suspend_job.py", 3, 2, kind, **environ)
    assert code == 0, output[-6000:]
    assert output.count("given back and taken again") == 3


def test_shrink_does_not_wait_for_a_process_that_refuses_connections(tmp_path):
    with Job(tmp_path) as job, coordinator_port() as port:
        for process in range(3):
            env = member(environment(1, FOLDER=str(tmp_path)), f"127.0.0.1:{port}", 3, process)
            job.start([sys.executable, "-X", "faulthandler", str(HERE / "refused_worker.py")], env)
        assert "members (0, 1)" in job.wait_for_line(1, "members")
        assert job.wait_for_line(1, "sum") == job.wait_for_line(0, "sum") == "sum 2"
        (tmp_path / "over").touch()
        for result in job.wait():
            assert result.code == 0, str(result)
