"""A root that runs ahead of the others between hosts: its messages fill their rings, and all arrive."""

from __future__ import annotations

import pytest

from jaxring.bench import fleet
from jaxring.bench.hosts import Hosts
from jaxring.bench.peers import CALLS
from jaxring.bench.tuning.cell import Layout, cells

pytestmark = [pytest.mark.netns, pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]
HOSTS = 4


@pytest.mark.slow
def test_broadcasts_of_which_nobody_waits_for_the_others(monkeypatch):
    """A receiver that paused while an event of its socket was on its way was deaf from then on, in 4 of 4 runs."""
    monkeypatch.setattr(fleet, "ANSWER_S", 30.0)
    todo = [cell for cell in cells(Layout(HOSTS, 1, HOSTS), [256, 1024, 4096], 0) if cell.collective == "broadcast"]
    with Hosts(HOSTS) as hosts, fleet.Crew(CALLS, HOSTS, 1, {}, hosts) as crew:
        for _ in range(3):
            for cell in todo:
                crew.ask("prepare", cell)
                for candidate in range(len(cell.candidates)):
                    for _ in range(10):
                        crew.ask("times", (candidate, 2, 64))
                    assert sum(crew.ask("wrong")) == 0
