"""Steps that count in all processes or in none, whichever process is killed while they decide."""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest

from tests.collectives.cases.coll_jobs import run_job

SCRIPT = pathlib.Path(__file__).with_name("commit_job.py")


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3)
def test_survivors_of_a_kill_in_a_commit_decide_alike_and_go_on(tmp_path, seed):
    options = ("--restart", "5", "--restart-delay", "0")
    code, output = run_job(SCRIPT, 3, 1, str(tmp_path), str(seed), options=options)
    assert code == 0, output[-6000:]
    reports = [[json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.iterdir()]
    assert len(reports) == 3 + 5
    votes = sorted(itertools.chain(*reports), key=lambda vote: vote["step"])
    by_attempt: dict[str, list[dict]] = {}
    for vote in votes:
        by_attempt.setdefault(f"{vote['attempt']} {vote['epoch']} {vote['step'] - vote['counts']}", []).append(vote)
    for attempt, alike in by_attempt.items():
        assert len({(vote["counts"], vote["step"], str(vote["w"])) for vote in alike}) == 1, (attempt, alike)
        if "before" in attempt or "others wait" in attempt:
            assert not alike[0]["counts"], attempt
        if "all voted" in attempt or "decided" in attempt or "alone" in attempt:
            assert alike[0]["counts"], attempt
        assert not alike[0]["counts"] or all(vote["ok"] for vote in alike), attempt
    # Each step counts once, among the members of its time.
    counted = {vote["step"]: vote for vote in votes if vote["counts"]}
    w = np.zeros(4)
    for step in range(len(counted)):
        vote = counted[step + 1]
        w += sum(p + 1 for p in vote["members"]) * (np.arange(4) + 1 + step)
        assert vote["w"] == w.tolist(), (step, vote)
    said = output.count("The step does not count in any process")
    assert said >= 2 * 5, output[-6000:]
