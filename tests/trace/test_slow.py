"""`jaxring trace slow`: what each call takes by the records of a job, and for whom time is lost waiting."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jaxring.cli import main
from jaxring.trace.flight import Flight
from jaxring.trace.slow import sites
from tests.trace import trace_records
from tests.trace.test_live import flights, record


def test_times_bytes_and_for_whom_time_is_lost():
    # Of 100 executions each takes 10 ms more than the one before it in process 0; process 1 is 4 ms late to all.
    begins = [1000 * n for n in range(1, 101)]
    early = [record(n, at, at + 10 * n) for n, at in enumerate(begins, 1)]
    late = [record(n, at + 4, at + 10 * n) for n, at in enumerate(begins, 1)]
    (site,) = sites(flights(early, late))
    assert (site.what, site.executions, site.nbytes, site.ranks, site.processes) == ("call 1", 100, 1_000_000, 4, 2)
    assert (site.way, site.failed) == ("ring/simple", 0)
    assert site.median_us == pytest.approx(503_000)  # between 496, 500 and 506, 510 ms
    assert site.p99_us == pytest.approx(990_000)
    assert site.busbw == pytest.approx(1.5 * 1e6 / 503_000 / 1e3)
    assert site.lost_us == pytest.approx(400_000)
    assert (site.latest, site.latest_us) == ("process 1", pytest.approx(400_000))


def test_the_one_that_is_waited_for_longest_is_named_not_the_one_that_comes_last_most_often():
    first = [record(1, 100, 200), record(2, 302, 400), record(3, 502, 600)]
    second = [record(1, 150, 200), record(2, 300, 400), record(3, 500, 600)]
    (site,) = sites(flights(first, second))
    assert (site.latest, site.latest_us, site.lost_us) == ("process 1", 50_000, 54_000)


def test_what_failed_or_runs_or_waits_for_nobody_counts_apart():
    failed = dataclasses.replace(record(2, 10, 900), state="failed")
    (site,) = sites(flights([record(1, 0, 5), failed, record(3, 20, 0)], [record(1, 1, 5)]))
    assert (site.executions, site.failed, site.p99_us) == (1, 1, 5000)
    label = '{"collective":"permute","nbytes":8,"ranks":2,"processes":2}'
    (site,) = sites(flights([record(1, 0, 5, label=label)], [record(1, 3, 5, label=label)]))
    assert (site.lost_us, site.latest) == (0, "")
    only = dataclasses.replace(record(1, 0, 5, label=""), state="failed")
    (site,) = sites(flights([only]))
    assert (site.executions, site.failed, site.median_us, site.p99_us, site.busbw, site.nbytes) == (0, 1, 0, 0, 0, 0)
    assert sites([]) == []


def test_moments_of_clocks_that_nothing_has_compared_are_not_compared():
    here, there = flights([record(1, 0, 50)], [record(1, 40, 50)])
    assert sites([here, there])[0].lost_us == 40_000
    there = Flight("another", there.pid, there.process, there.records)
    assert sites([here, there])[0].lost_us == 0
    # Compared, to 30 ms each, which is more than the wait; and to 10 ms.
    for error, lost in ((50, 0), (10, 40_000)):
        compared = dataclasses.replace(here, clocks={1: (0, error * 10**6)})
        assert sites([compared, there])[0].lost_us == lost


def test_the_command_prints_a_line_for_each_call(tmp_path, capsys):
    files = []
    for process in range(2):
        records = [trace_records.record(n, n, 0, f"step {n}", launched=n, ended=n + n) for n in (1, 2)]
        files.append(str(tmp_path / f"{process}.trace"))
        (tmp_path / f"{process}.trace").write_bytes(trace_records.flight(process, records, pid=7 + process))
    assert main(["trace", "slow", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Calls of 2 processes"
    assert [line.split()[:3] for line in lines[2:]] == [["step", "2", "1"], ["step", "1", "1"]]
    assert main(["trace", "slow", "--json", *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["what"], each["median_us"]) for each in found] == [("step 2", 2e6), ("step 1", 1e6)]
    out = tmp_path / "timeline.json"
    assert main(["trace", "view", "--json", *files, "-o", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(out),
        "records": [{"process": process, "pid": 7 + process, "host": "h"} for process in range(2)],
    }
