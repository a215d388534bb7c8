"""`jaxring top`: what two looks at a job's records say of the time between them, and a real job with a late process."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from jaxring._stragglers import Straggler
from jaxring.cli import main, top
from jaxring.trace.flight import Flight, Record
from jaxring.trace.live import view
from tests.stress.stress_jobs import ROOT, Job, environment

MS = 10**6
LABEL = '{"collective":"all_reduce","nbytes":1000000,"ranks":4,"processes":2,"algorithm":"ring","protocol":"simple"}'


def record(number, launched, ended, call=1, label=LABEL):
    state = "done" if ended else "running"
    return Record(number, 0, number, f"call {call}", label, launched * MS, launched * MS, ended * MS, state)


def flights(*records_of):
    return [Flight("h", 100 + i, i, tuple(records)) for i, records in enumerate(records_of)]


def test_rates_times_and_who_comes_last():
    old = record(1, 0, 10)
    first = [old, record(2, 100, 150), record(3, 200, 250), record(4, 390, 0)]
    second = [old, record(2, 140, 150), record(3, 240, 250)]
    seen = view("a job", flights([old], [old]), flights(first, second), 50 * MS, 450 * MS)
    assert seen.seconds == 0.4
    early, late = seen.processes
    assert (early.operations, early.per_second, late.operations) == (2, 5.0, 2)
    assert (early.waited_us, early.late_us, early.last) == (40_000, 0, 0)
    assert (late.waited_us, late.late_us, late.last) == (0, 40_000, 1)
    assert early.in_collectives == pytest.approx(0.16 / 0.4)  # what runs counts up to now
    assert (early.running, early.running_s) == ("call 1, execution 0", 0.06)
    assert (late.running, late.running_s) == ("", 0)
    assert (early.waits_for, late.waits_for) == ("process 1", "")
    (call,) = seen.calls
    assert (call.executions, call.per_second, call.us, call.way) == (2, 5.0, 30_000, "ring/simple")
    assert call.busbw == pytest.approx(1.5 * 1e6 / 30e3 / 1e3)
    assert (call.latest, call.latest_share) == ("process 1", 1)


def test_calls_come_by_the_time_that_they_take_and_records_may_be_damaged():
    records = [record(1, 10, 11, call=1), record(2, 12, 90, call=2, label=""), record(3, 91, 93, call=3, label="[1")]
    seen = view("a job", flights([]), flights(records), 0, 100 * MS)
    assert [call.what for call in seen.calls] == ["call 2", "call 3", "call 1"]
    assert (seen.calls[0].busbw, seen.calls[0].latest, seen.calls[0].way) == (0, "", "?/?")
    assert (seen.processes[0].late_us, seen.processes[0].waits_for) == (0, "")
    assert (seen.processes[0].running, seen.processes[0].newest) == ("", "call 3, execution 0")
    json.dumps(seen.as_json())


def test_what_stands_in_brackets_is_no_markup_of_the_screen(capsys):
    late = Straggler("process 1", "all_reduce at [/a]", "input", "[bold]why", 1.0, 0.0, 1, 1, 1.0)
    seen = dataclasses.replace(view("a job", [], flights([record(1, 0, 1)]), 0, MS), stragglers=(late,))
    top._Shown(as_json=False).show(seen)
    assert "process 1 comes late to all_reduce at [/a], " in capsys.readouterr().out


def test_operations_that_newer_ones_have_pushed_out_are_counted():
    seen = view(
        "a job", flights([record(10, 0, 1)]), flights([record(n, 100 + n, 101 + n) for n in (17, 18)]), 0, 10**9
    )
    assert (seen.processes[0].operations, seen.processes[0].per_second) == (8, 8.0)
    assert (seen.calls[0].executions, seen.calls[0].us) == (8, 1000)


PROGRAM = """
import time
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import jaxring
me, n = jax.process_index(), jax.device_count()
mesh = jax.make_mesh((n,), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(float(n))[i])
f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
f(x).block_until_ready()
print("begun", flush=True)
while True:
    time.sleep(0.1 if me == 1 else 0)
    f(x).block_until_ready()
"""


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_late_process_of_a_job_is_named(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    with Job(tmp_path) as job:
        command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", str(script)]
        launcher = job.start(command, {**environment(), "PYTHONPATH": str(ROOT)})
        for process in range(3):
            job.wait_for_line(0, f"[{process}] begun")
        assert main(["top", "--job", str(launcher.pid), "--once", "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        assert main(["top", "--job", str(launcher.pid), "--once", "--interval", "0.5"]) == 0
        shown = capsys.readouterr().out
    assert [each["name"] for each in seen["processes"]] == ["process 0", "process 1", "process 2"]
    assert seen["processes"][1]["last"] > 0.9
    assert all(seen["processes"][i]["waited_us"] > seen["processes"][1]["waited_us"] for i in (0, 2))
    assert [each["waits_for"] for each in seen["processes"]][::2] == ["process 1"] * 2
    assert all("program.py:" in each["newest"] for each in seen["processes"])
    (call,) = seen["calls"]
    assert (call["latest"], call["ranks"], call["processes"], call["nbytes"]) == ("process 1", 3, 3, 4)
    assert call["executions"] > 5
    assert "comes last" in shown
    assert "process 1: " in shown


def test_without_a_job_it_says_so(capsys):
    assert main(["top", "--job", "nowhere:1"]) == 1
    assert "There is no process of job nowhere:1 on this host" in capsys.readouterr().err
    assert main(["top", "--interval", "0"]) == 1
    assert "give seconds above 0" in capsys.readouterr().err
