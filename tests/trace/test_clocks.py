"""Records of several hosts by one clock: what was measured between processes, put together."""

from __future__ import annotations

import dataclasses

from jaxring._stragglers import Sample
from jaxring.trace import view
from jaxring.trace.clocks import aligned
from jaxring.trace.diff import compare
from jaxring.trace.flight import Flight, Record
from jaxring.trace.lateness import stragglers

MS, S = 10**6, 10**9
LABEL = '{"collective":"all_reduce","nbytes":4,"ranks":3,"processes":3,"algorithm":"ring","protocol":"ll"}'
# The monotonic clock of each host less that of the first one; the clocks of day differ by as much, and by SHIFTS.
OFFSETS = (0, 7 * S, -3 * S)
SHIFTS = (1000 * S, 1001 * S, 998 * S)


def flight(process, clocks, late=0, steps=20, asleep=True):
    """A process that launches a step every 100 ms of the first host's clock, ``late`` ns after the others."""
    shift, records, samples = SHIFTS[process] - OFFSETS[process], [], []
    for i in range(steps):
        launched = 100 * MS * i + late + OFFSETS[process] + shift
        end = 100 * MS * i + 60 * MS + OFFSETS[process] + shift
        records.append(Record(i + 1, i, 70, "all_reduce x", LABEL, launched, launched, end, "done"))
    for at in range(0, steps * 100 * MS + 1, 500 * MS):
        spent = at // 10 if asleep else at
        samples.append(Sample(at + OFFSETS[process] + shift, spent, 0))
    return Flight(f"host{process}", 7, process, tuple(records), 3, "job", tuple(samples), clocks, shift)


def chain(late=0, error=1 * MS, asleep=True):
    """Process 1 has compared its clock with that of 0, and 2 with that of 1, each a little wrong."""
    return [
        flight(0, {}),
        flight(1, {0: (OFFSETS[0] - OFFSETS[1] + error // 2, error), 2: (OFFSETS[2] - OFFSETS[1], 3 * error)}),
        flight(2, {1: (OFFSETS[1] - OFFSETS[2] - error // 2, error)}, late, asleep=asleep),
    ]


def test_clocks_are_compared_over_several_processes_and_errors_add_up():
    moved = aligned(chain())
    assert [error for _, error in moved] == [0, 1 * MS, 2 * MS]
    for process, (each, error) in enumerate(moved):
        for i, record in enumerate(each.records):
            assert abs(record.launched - (SHIFTS[0] + 100 * MS * i)) <= error, (process, i)
        assert abs(each.samples[0].at - SHIFTS[0]) <= error


def test_without_a_comparison_a_host_has_its_own_clock():
    alone = [flight(0, {}), flight(1, {}), flight(2, {})]
    assert [error for _, error in aligned(alone)] == [0, None, None]
    assert aligned(alone)[1][0] is alone[1]
    assert not stragglers(alone)
    assert aligned([]) == []


def test_processes_of_one_host_have_one_clock_whatever_their_clocks_of_day_said():
    one, other = flight(0, {}), flight(1, {})
    shift = other.shift + OFFSETS[1]  # the same monotonic clock, of which that of the day has been set meanwhile
    records = tuple(
        Record(r.number, r.sequence, r.key, r.what, r.label, r.arrived, r.launched, r.ended, r.state)
        for r in other.records
    )
    same = Flight("host0", 8, 1, records, 3, "job", (), {}, shift)
    moved, error = aligned([one, same])[1]
    assert error == 0
    assert moved.records[0].launched == one.records[0].launched
    # Two hosts of one name, which a comparison tells apart.
    apart = Flight("host0", 8, 1, records, 3, "job", (), {0: (-OFFSETS[1], 5)}, other.shift)
    assert aligned([one, apart])[1][1] == 5


def test_a_late_process_of_another_host_is_named_in_diff_and_view():
    flights = chain(late=40 * MS)
    (found,) = stragglers(flights)
    assert (found.process, found.cause, found.error_us) == ("process 2", "input", 2000)
    assert abs(found.late_us - 40e3) < 2e3
    said = compare(flights)
    assert said.well
    assert said.sentences[-1] == str(found)
    events = view.timeline(flights)["traceEvents"]
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names[2].endswith(", clock exact to 2 ms")
    (instant,) = [each for each in events if each["ph"] == "i"]
    assert (instant["name"], instant["args"]["why"]) == ("comes late: input", str(found))
    first = next(each for each in events if each["ph"] == "X" and each["pid"] == 1)
    assert abs(first["ts"]) <= 2000
    # With a process that computes more the cause is another one, and clocks that differ by more say nothing.
    assert [each.cause for each in stragglers(chain(late=40 * MS, asleep=False))] == ["compute"]
    assert not stragglers(chain(late=40 * MS, error=6 * MS))


def test_who_is_behind_and_late_is_said_by_one_clock():
    # All but process 1 are in the next step; by its own host's clock each would have begun it seconds apart.
    flights = chain(late=40 * MS, error=0)
    for process in (0, 2):
        each = flights[process]
        launched = 100 * MS * 20 + OFFSETS[process] + each.shift
        stuck = Record(21, 20, 71, "all_gather y", LABEL, launched, launched, 0, "running")
        flights[process] = dataclasses.replace(each, records=(*each.records, stuck))
    behind, late = compare(flights).sentences
    assert behind.startswith("Process 1 (pid 7 on host1) is behind: it has not begun all_gather y")
    assert behind.endswith("all_reduce x, execution 19, done 0.04 s before the others began.")
    assert late == str(stragglers(chain(late=40 * MS, error=0))[0])
