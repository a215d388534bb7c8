"""Who holds the others up, and why, by arrivals and samples that are made up."""

from __future__ import annotations

import itertools
import random

import pytest

from jaxring._stragglers import Arrival, Execution, Sample, find

MS = 10**6
PROCESSES = [f"process {p}" for p in range(4)]


def executions(count, late=None, noise=0, seed=0, period=100 * MS, idle=30 * MS, call="all_reduce", error=0):
    """A call every ``period``; the processes of ``late`` come so much later, after having idled so much longer."""
    generator = random.Random(seed)
    made = []
    for i in range(count):
        arrivals = {}
        for name in PROCESSES:
            by = (late or {}).get(name, 0) + generator.randrange(noise + 1)
            arrivals[name] = Arrival(i * period + idle + by, idle + by, error)
        made.append(Execution(call, arrivals))
    return made


def samples(cpu=None, delayed=None, link=None, until=3000 * MS):
    """Twice a second; shares of a CPU by process, and (peer, bytes, ns) of the slowest connection."""
    made = {}
    for name in PROCESSES:
        times = range(0, until + 1, 500 * MS)
        rates = [(given or {}).get(name, usual) for given, usual in ((cpu, 0.3), (delayed, 0.05))]
        made[name] = [
            Sample(t, int(t * rates[0]), int(t * rates[1]), *(link or {}).get(name, (-1, 0, 0))) for t in times
        ]
    return made


def test_nobody_is_named_where_none_is_late():
    for seed in range(50):
        assert not find(executions(20, noise=60 * MS, seed=seed), samples())
    assert not find([], {})


@pytest.mark.parametrize(
    ("spent", "cause", "why"),
    [
        ({"cpu": {"process 2": 0.65}}, "compute", "in each second it has used 0.35 s of a CPU more"),
        ({"delayed": {"process 2": 0.5}}, "compute", "have waited 0.45 s longer for a CPU than those"),
        ({}, "input", "sleeps outside of collectives"),
    ],
)
def test_a_late_process_is_named_with_its_cause_within_twenty_steps(spent, cause, why):
    (found,) = find(executions(20, {"process 2": 40 * MS}, noise=5 * MS), samples(**spent))
    assert (found.process, found.call, found.cause) == ("process 2", "all_reduce", cause)
    assert why in found.why
    assert found.late_us == pytest.approx(40e3, rel=0.2)
    assert (found.late, found.executions) == (20, 20)
    text = str(found)
    assert text.startswith("process 2 comes late to all_reduce, by ")
    assert f"Likely cause: {cause}: {found.why}" in text


def test_two_late_ones_are_both_named_the_latest_first():
    late = {"process 1": 20 * MS, "process 3": 60 * MS}
    found = find(executions(20, late), samples(cpu={"process 1": 0.5}))
    assert [(each.process, each.cause) for each in found] == [("process 3", "input"), ("process 1", "compute")]


def test_it_says_since_when():
    before = executions(50)
    after = [
        Execution(each.call, {n: Arrival(a.launched + 5000 * MS, a.idle) for n, a in each.arrivals.items()})
        for each in executions(30, {"process 0": 50 * MS})
    ]
    (found,) = find(before + after, samples())
    assert found.seconds == pytest.approx(2.9)


def test_who_is_late_for_an_earlier_collective_that_ended_late_is_not_named():
    made = []
    for each in executions(20, {"process 1": 40 * MS}):
        late = each.arrivals["process 1"]
        made.append(Execution(each.call, {**each.arrivals, "process 1": late._replace(idle=30 * MS)}))
    assert not find(made, samples())


def test_clocks_that_are_known_badly_name_nobody():
    assert not find(executions(20, {"process 1": 40 * MS}, error=15 * MS), samples())
    (found,) = find(executions(20, {"process 1": 40 * MS}, error=5 * MS), samples())
    assert "(clocks agree to 5 ms)" in str(found)


def test_few_executions_and_no_samples():
    assert not find(executions(7, {"process 1": 40 * MS}), samples())
    (found,) = find(executions(8, {"process 1": 40 * MS}), {})
    assert found.cause == "unknown"


def test_a_slow_connection_is_named():
    fast, slow = (1, 5_000_000, 5 * MS), (3, 5_000_000, 400 * MS)
    link = {"process 0": fast, "process 1": fast, "process 2": slow, "process 3": fast}
    (found,) = find(executions(20), samples(link=link))
    assert (found.process, found.cause) == ("process 2", "network")
    assert "its connection to process 3 carries 12.5 MB/s while it sends, those of others 1,000 MB/s" in found.why
    assert str(found).startswith("process 2 holds the others up in all_reduce, by 79 ms in each execution")
    assert found.seconds == pytest.approx(3.0)
    # One that waits for acknowledgements by the same way.
    (found,) = find(executions(20), samples(link={**link, "process 0": (2, 5_000_000, 150 * MS)}))
    assert found.process == "process 2"
    also = samples(link={**link, "process 0": (1, 5_000_000, 380 * MS)})
    assert {each.process for each in find(executions(20), also)} == {"process 0", "process 2"}
    (found,) = find(executions(20), also, {"process 1": "host", "process 2": "host"})
    assert found.process == "process 2"
    # All alike, or seldom busy: nobody's fault.
    assert not find(executions(20), samples(link=dict.fromkeys(PROCESSES, slow)))
    assert not find(executions(20), samples(link={**link, "process 2": (3, 5_000_00, 40 * MS)}))


def test_a_connection_is_as_fast_as_in_most_samples():
    """Measured, in bytes and us: a connection to a process that was asleep, whose kernel had no CPU for
    acknowledgements in two of the samples, and in three on a busier machine; and one over 100 Mbit/s, of which the
    kernel said a far higher rate once."""
    usual = {name: ((p + 1) % 4, 11_000_000, 14 * MS) for p, name in enumerate(PROCESSES)}
    asleep = [(10_749_544, 10_690), (9_206_944, 9_560), (8_659_024, 112_000), (10_981_224, 92_000), (9_176_440, 7_130)]
    busier = [asleep[0], (8_659_024, 150_000), *asleep[2:]]
    slow = [(3_146_208, 244_000), (1_829_400, 18_860), (3_408_392, 272_000), (2_884_024, 236_000)]
    slow += [(5_219_936, 432_000), (2_245_552, 180_000), (3_360_416, 272_000)]
    given = executions(20, {"process 0": 150 * MS}, period=300 * MS)
    for measured, named in (
        (asleep, ["process 0"]),
        (busier, ["process 0"]),
        (slow, ["process 0", "process 3"]),
    ):
        spent = samples(link=usual, until=6000 * MS)
        spent["process 3"] = [
            each._replace(link_peer=0, link_bytes=nbytes, link_ns=us * 1000)
            for each, (nbytes, us) in zip(spent["process 3"], itertools.cycle(measured), strict=False)
        ]
        found = find(given, spent)
        assert sorted(each.process for each in found) == named
    (network,) = (each for each in found if each.cause == "network")
    assert "carries 12.5 MB/s while it sends" in network.why
    assert network.seconds == pytest.approx(6.0)


def test_three_at_once_are_named_each_with_its_cause():
    # One has a tenth of a CPU, so that all that it sends and gets is slow, too; one sleeps for a fraction of what that
    # takes; a third one's connection is slow, but busy in a small part of the time only.
    late = {"process 1": 900 * MS, "process 0": 80 * MS}
    link = {
        "process 0": (2, 5_000_000, 5 * MS),
        "process 1": (2, 5_000_000, 450 * MS),
        "process 2": (0, 5_000_000, 40 * MS),
        "process 3": (1, 5_000_000, 480 * MS),
    }
    given = executions(20, late, noise=5 * MS, period=1000 * MS)
    spent = samples(delayed={"process 1": 0.9}, link=link, until=20_000 * MS)
    spent["process 4"] = [each._replace(link_peer=0, link_ns=5 * MS) for each in spent["process 0"]]
    found = {each.process: each.cause for each in find(given, spent)}
    assert found == {"process 0": "input", "process 1": "compute", "process 2": "network"}


def test_a_slow_connection_to_one_that_computes_more_is_named():
    link = {name: ((p + 1) % 4, 5_000_000, 5 * MS) for p, name in enumerate(PROCESSES)}
    link["process 0"] = (1, 5_000_000, 400 * MS)
    given = executions(20, {"process 1": 300 * MS}, period=1000 * MS)
    spent = samples(cpu={"process 1": 0.9}, link=link, until=20_000 * MS)
    found = {each.process: each.cause for each in find(given, spent)}
    assert found == {"process 1": "compute", "process 0": "network"}


def test_one_that_is_very_late_names_nobody_else():
    for seed in range(50):
        found = find(executions(20, {"process 1": 900 * MS}, noise=60 * MS, seed=seed, period=1000 * MS), samples())
        assert [each.process for each in found] == ["process 1"]


def test_one_is_named_whose_lateness_another_one_hides_in_part():
    """Measured, in ms: what a process without a CPU still has to send lets an operation end at different times, so that
    one whose input takes 150 ms holds up half of the others by less in some executions."""
    by = [145, 67, 148, 121, 146, 142, 92, 65, 112, 154, 138, 150, 152, 149, 146, 85, 152, 147, 133]
    made = [
        Execution(
            each.call, {**each.arrivals, "process 3": Arrival(each.arrivals["process 0"].launched + ms * MS, 180 * MS)}
        )
        for each, ms in zip(executions(19, {"process 1": 940 * MS}, period=1620 * MS), by, strict=True)
    ]
    found = find(made, samples(delayed={"process 1": 6.0}, until=31_000 * MS))
    assert [(each.process, each.cause) for each in found] == [("process 1", "compute"), ("process 3", "input")]
