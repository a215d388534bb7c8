"""A host whose firewall drops what would connect to it: both sides are told so, whichever deadline comes first."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.hosts.hosts_netns import hosts
from tests.stress.stress_jobs import Job

WORKER = str(pathlib.Path(__file__).parent / "worker_firewall.py")

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]


@pytest.mark.slow
def test_a_host_that_drops_connections_is_named_on_both_sides(tmp_path):
    with hosts(2) as made, Job(tmp_path) as job:
        made.drop_connections_to(1)
        settings = {"FOLDER": str(tmp_path), "JAXRING_JOIN_TIMEOUT": "4", "JAXRING_STALL_WARNING": "1"}
        made.start(job, [WORKER], [0, 1], **settings)
        address = re.escape(made.address(1))
        where = rf"process 1 \(pid [0-9]+ on host1\) to answer \({address} port [0-9]+: no answer yet\)"
        for process in range(2):
            errors = {
                name: json.loads(job.wait_for_line(process, f"{name} raised ").removeprefix(f"{name} raised "))
                for name in ("short", "long", "one way")
            }
            # The call's deadline comes before JAXRING_JOIN_TIMEOUT.
            assert re.search(f"no plan within the deadline for jaxring.all_reduce.*, which waits for {where}",
                             errors["short"]), errors  # fmt: skip
            for name in ("long", "one way"):
                cause = (
                    r"Process 0 cannot reach process 1 \(pid [0-9]+ on host1\) within 4 s \(JAXRING_JOIN_TIMEOUT\)\. "
                    rf"{address} port [0-9]+: timed out\. .*firewall"
                )
                assert re.search(cause, errors[name]), (name, errors)
                assert "UNAVAILABLE" in errors[name], (name, errors)
        (tmp_path / "over").touch()
        results = job.wait(60)
        for result in results:
            assert result.code == 0, str(result)
            # Both run one program, of which process 0 is planning a collective.
            assert "different programs" not in result.err, str(result)
        # Long before they fail it is said why they wait.
        planning = f"process 0 has waited .* in the planning of jaxring.*, which waits for {where}"
        assert re.search(planning, results[0].err), str(results[0])
