"""`jaxring bench`: what it measures is right, and it says what it cannot measure. No test looks at a time."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from jaxring.bench import member, peers, report, run, work
from jaxring.bench.fleet import Crew
from jaxring.bench.hosts import Hosts
from jaxring.bench.run import Job, Result, installed
from jaxring.cli import main
from jaxring.errors import JaxringError
from jaxring.settings import sizes


def test_sizes():
    assert [sizes.size(text) for text in ("4", "64K", "1m", "2GiB")] == [4, 65536, 1 << 20, 2 << 30]
    assert work.sizes(4, 64, 4) == [4, 16, 64]
    shown = [sizes.shown(n) for n in (4, 1000, 65536, 1 << 20, 3 << 29, 10**6)]
    assert shown == ["4 B", "1000 B", "64 KiB", "1 MiB", "1.5 GiB", "976.6 KiB"]
    for text in ("", "K", "1Q", "-4", "1.5M"):
        with pytest.raises(ValueError, match=r"is no size in bytes: write 4, 64K, 1M or 2G"):
            sizes.size(text)


@pytest.mark.parametrize(
    ("collective", "count", "moved", "factor", "traffic"),
    [
        # Of 1 MiB of float32 among 4 ranks, by hand.
        ("all_reduce", 262144, 1 << 20, 1.5, 8 << 20),
        ("all_gather", 65536, 1 << 20, 0.75, 5 << 20),
        ("reduce_scatter", 262144, 1 << 20, 0.75, 5 << 20),
        ("all_to_all", 262144, 1 << 20, 0.75, 8 << 20),
        ("permute", 262144, 1 << 20, 1.0, 8 << 20),
        ("broadcast", 262144, 1 << 20, 1.0, 8 << 20),
    ],
)
def test_what_is_counted(collective, count, moved, factor, traffic):
    case = work.Case(collective, "sum", "float32", 1 << 20)
    found = (case.count(4), case.moved(4), case.bus_factor(4), case.memory_traffic(4))
    assert found == (count, moved, factor, traffic)


def test_expected_results():
    case = work.Case("reduce_scatter", "sum", "float32", 32)
    every = np.array([work.operand(case, 2, rank) for rank in range(2)])
    assert (every[0] != every[1]).any()
    np.testing.assert_array_equal(work.expected(case, 2, 1), every.sum(0)[4:])
    gathered = work.expected(dataclasses.replace(case, collective="all_gather"), 2, 0)
    assert gathered.shape == (8,)


def result(peer, times, **case):
    return Result(peer, work.Case("all_reduce", "sum", "float32", **case), 1, 4, 4, times, 0, "")


def test_figures_of_a_result():
    found = result("jaxring", [100.0, 300.0, 200.0, 200.0], nbytes=1 << 20)
    assert found.median_us == 200
    assert found.algbw == pytest.approx((1 << 20) / 200e-6 / 1e9)
    assert found.busbw == pytest.approx(1.5 * found.algbw)
    assert found.light(80.0) == pytest.approx((8 << 20) / 80e9 / 200e-6)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("layout", "others", "collectives"),
    [
        ("1x2", ["xla"], ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]),
        ("2x1", ["gloo", "communicator"], ["all_reduce", "permute"]),
    ],
)
def test_a_run(tmp_path, capsys, layout, others, collectives):
    saved, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = ["-n", layout, "-b", "64", "-e", "4K", "-f", "64", "-w", "1", "--iters", "2", "--peers", ",".join(others)]
    assert main(["bench", *collectives, *options, "--json", str(saved), "--plot", str(plot)]) == 0
    results = report.load(saved)
    assert [(r.case.collective, r.case.nbytes, r.peer) for r in results] == [
        (collective, nbytes, name)
        for collective in collectives
        for nbytes in (64, 4096)
        for name in ("jaxring", *others)
    ]
    for found in results:
        assert (found.wrong, found.refused, len(found.times_us)) == (0, "", 2)
        assert bool(found.choice) == (found.peer in peers.OURS)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert json.loads(saved.read_text())["machine"]["copy_gbs"] > 0
    shown = capsys.readouterr().out
    assert "busbw GB/s" in shown
    assert all(peer in shown for peer in others)


def test_a_peer_with_a_variable():
    """It is one of ours, compared with ours without it; of others', compared with what they are compared with."""
    found = peers.find("jaxring:JAXRING_ALGO=direct")
    assert (found.kind, found.ours, found.environment) == ("jaxring", "jaxring", {"JAXRING_ALGO": "direct"})
    assert found.title == "jaxring with JAXRING_ALGO=direct"
    assert peers.with_ours([found.name, "gloo:A=b=c"]) == ("jaxring", found.name, "gloo:A=b=c")
    assert peers.with_ours(["communicator:A=1"]) == ("jaxring", "communicator", "communicator:A=1")
    assert peers.with_ours(["raw-mpi:A=1"]) == ("jaxring", "communicator", "raw-mpi:A=1")
    assert peers.find("gloo:A=b=c").environment == {"A": "b=c"}
    assert [peers.is_ours(name) for name in (found.name, "communicator:A=1", "gloo:A=1")] == [True, True, False]


def compared(saved, layout, *options):
    """The choices of PXN and of direct, each told to take it, where both are right."""
    given = ["-n", layout, "-b", "64", "-e", "32K", "-f", "512", "-w", "1", "--iters", "2", "--env", "JAXRING_ALGO=pxn"]
    direct = ["--peers", "jaxring:JAXRING_ALGO=direct"]
    assert main(["bench", "all_to_all", *given, *direct, *options, "--json", str(saved)]) == 0
    found = report.load(saved)
    assert [(r.peer, r.case.nbytes, len(r.times_us), r.wrong, r.refused) for r in found] == [
        (name, nbytes, 2, 0, "") for nbytes in (64, 32768) for name in ("jaxring", "jaxring:JAXRING_ALGO=direct")
    ]
    return [r.choice for r in found]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_algorithms_of_ours_take_turns(tmp_path, capsys):
    choices = compared(tmp_path / "out.json", "2x2")
    assert [choice.split("/")[0] for choice in choices] == ["pxn", "direct"] * 2
    assert "jaxring:JAXRING_ALGO=direct" in capsys.readouterr().out


def test_hosts_say_which_tool_is_missing(tmp_path, monkeypatch):
    for tool in ("ip", "unshare"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JaxringError, match="PATH has no tc"), Hosts(2, rate="1gbit"):
        pass


@pytest.mark.slow
@pytest.mark.netns
def test_pxn_and_direct_between_four_hosts(tmp_path):
    choices = compared(tmp_path / "out.json", "4x2", "--hosts", "4")
    assert [(choice.split("/")[0], "tcp" in choice, "shm" in choice) for choice in choices] == [
        ("pxn", True, False),
        ("direct", True, False),
    ] * 2


@pytest.mark.multiprocess
def test_in_place_chains_and_what_a_peer_lacks(tmp_path):
    saved = tmp_path / "out.json"
    options = ["-n", "1x2", "-b", "64", "-e", "64", "-w", "1", "--iters", "2", "--peers", "xla", "--json", str(saved)]
    assert main(["bench", "all_reduce", *options, "-o", "prod", "-d", "bfloat16", "--in-place", "both"]) == 0
    found = report.load(saved)
    assert [(r.peer, r.case.inplace, bool(r.times_us), r.refused) for r in found] == [
        ("jaxring", False, True, ""),
        ("xla", False, False, "no prod all_reduce"),
        ("jaxring", True, True, ""),
        ("xla", True, False, "no prod all_reduce"),
    ]
    assert [r.wrong for r in found] == [0, 0, 0, 0]


def test_a_peer_that_is_not_there_is_left_out_with_a_reason():
    names, missing = installed(Job(1, 8, ("jaxring", "xla", "gloo", "mpi")))
    assert names == ["jaxring", "xla"]
    assert missing["gloo"] == "it works between processes"
    assert set(missing) == {"gloo", "mpi"}


@pytest.mark.multiprocess
def test_a_job_that_does_not_start_is_told(tmp_path):
    broken = {"JAXRING_ALGO": "nonsense"}
    with pytest.raises(JaxringError, match=r"(?s)jaxring did not start. It said:.*nonsense"):
        Crew(peers.PEERS["jaxring"], 1, 1, broken).__enter__()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peers", "nccl"], "Unknown peer 'nccl'"),
        (["--suite", "cpu", "--out", "."], "run `python -m benchmarks.cpu --out DIR` or"),
        (["--peers", "jaxring:direct"], "Unknown peer 'jaxring:direct'"),
        (["--compare", "/dev/null"], "is not a file of jaxring bench"),
        (["--compare", "/nowhere/old.json"], "No such file or directory: '/nowhere/old.json'"),
        (["-o", "mean", "-d", "int32"], "op='mean' needs a float or complex dtype, not int32"),
        (["-d", "bool"], "op='sum' of bool is a count"),
        (["--plot", "out.txt"], "--plot out.txt: name a file that ends in .png, .svg, .pdf."),
        (["-n", "3x1", "--hosts", "2"], "2 hosts cannot share the processes of every -n equally."),
    ],
)
def test_what_cannot_be_measured_is_told_before_it_is(capsys, arguments, says):
    assert main(["bench", "all_reduce", *arguments]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tune"], ["simulate", "--cluster", "hgx-h100", "--bytes", "1M"]])
def test_no_command_works_for_a_picture_that_it_cannot_draw(capsys, command, tmp_path):
    assert main([*command, "--plot", "out.txt"]) == 1
    said = f"jaxring {command[0]}: --plot out.txt: name a file that ends in .png, .svg, .pdf.\n"
    assert capsys.readouterr().err == said
    (tmp_path / "file").touch()
    assert main([*command, "--plot", str(tmp_path / "file" / "out.png")]) == 1
    assert capsys.readouterr().err.endswith("out.png: this file cannot be written.\n")


@pytest.mark.parametrize("option", ["--forget", "--ranks"])
def test_tune_draws_what_it_measures_of_this_machine_only(capsys, option):
    assert main(["tune", option, "--plot", "out.png"]) == 1
    said = f"jaxring tune: --plot draws what is measured of this machine: leave it out of {option}.\n"
    assert capsys.readouterr().err == said


def test_without_a_collective_it_asks_for_one(capsys):
    assert main(["bench"]) == 1
    assert "Name a collective" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(capsys, monkeypatch):
    real = importlib.util.find_spec
    without = {"matplotlib"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in without else real(name, *more))
    assert main(["bench", "all_reduce", "--plot", "out.png"]) == 1
    assert capsys.readouterr().err == (
        "jaxring bench: Plots are drawn with matplotlib: pip install 'jaxring[bench]'.\n"
    )


class Fake:
    """A crew of one process whose job breaks when it has been asked so often."""

    def __init__(self, name, answers, seconds=1.0):
        self.peer, self.ranks, self.lost, self.ended = peers.PEERS[name], 1, "", False
        self.runs = []
        self._answers, self._seconds = answers, seconds

    def ask(self, name, arguments=None):
        if self._answers == 0:
            raise JaxringError("It did not\nanswer.")
        self._answers -= 1
        if name == "run":
            self.runs.append(arguments)
            return [[self._seconds] * arguments[0]]
        return {"prepare": [""], "wrong": [0]}.get(name, [""])

    def give_up(self, why):
        self.lost, self.ended = why, True


@pytest.mark.parametrize("answers", [0, 1, 3, 4, 6])
def test_a_peer_that_breaks_is_left_out_from_there_on(answers):
    crews = [Fake("jaxring", 1000), Fake("gloo", answers), Fake("mpi", 1000)]
    for _ in range(2):
        case = work.Case("all_reduce", "sum", "float32", 4)
        found = list(run._one(Job(1, 1, ()), crews, case, 16, 1, True, lambda _: None, 1e9))
        assert [(each.peer, len(each.times_us), each.refused) for each in found] == [
            ("jaxring", 16, ""),
            ("gloo", 0, "It did not answer."),
            ("mpi", 16, ""),
        ]
        assert [crew.ended for crew in crews] == [False, True, False]


def test_short_iterations_are_timed_in_batches():
    crews = [Fake("jaxring", 1000, 1e-5), Fake("gloo", 1000, 4e-3)]
    case = work.Case("all_reduce", "sum", "float32", 4)
    ours, gloo = run._one(Job(1, 1, ()), crews, case, 16, 5, True, lambda _: None, 1e9)
    # Compiled, paced by single ones and by batches, then the turns: each begins with one that does not count.
    assert crews[0].runs == [(1, 1), (5, 1), (3, 100)] + [(3, 100)] * 8
    assert crews[1].runs == [(1, 1), (5, 1), (3, 1)] + [(3, 1)] * 8
    assert (ours.times_us, gloo.times_us) == ([10.0] * 16, [4000.0] * 16)


def test_batches_outlast_what_a_shaped_link_lets_pass_at_once():
    case = work.Case("all_reduce", "sum", "float32", 4)
    for rate, batch in [("1gbit", 2097), ("10gbit", 2000), ("", 100)]:
        crew = Fake("jaxring", 1000, 1e-5)
        list(run._one(Job(1, 1, (), {}, Hosts(2, 1, rate)), [crew], case, 16, 5, True, lambda _: None, 1e9))
        assert {count for _, count in crew.runs[2:]} == {batch}


def test_a_batch_of_steps_is_one_time(monkeypatch):
    clock = iter([0.0, 7.0, 10.0, 24.0])
    monkeypatch.setattr(member.time, "perf_counter", lambda: next(clock))
    steps = []
    assert member._times(lambda: steps.append(None), 2, 7) == [1.0, 2.0]
    assert len(steps) == 14


def test_ours_may_not_break():
    case = work.Case("all_reduce", "sum", "float32", 4)
    with pytest.raises(JaxringError, match="did not"):
        list(run._one(Job(1, 1, ()), [Fake("jaxring", 4)], case, 16, 1, True, lambda _: None, 1e9))
