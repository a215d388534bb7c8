"""`jaxring explain`: the planner's decision for a described job."""

from __future__ import annotations

import json
import sys

import pytest

from jaxring.cli import main
from jaxring.plan.choice import figures
from jaxring.runtime.explain import Decision
from tests import starting


def test_the_choice_its_reason_and_the_candidates(capsys):
    assert main(["explain", "all_reduce", "-n", "4x2", "--hosts", "2", "-b", "64M"]) == 0
    out = capsys.readouterr().out
    assert "all_reduce of 64 MiB float32, 8 ranks in 4 process(es) on 2 host(s)" in out
    assert "takes hier_" in out
    assert "is the cheapest of" in out
    assert "hier_tree/simple" in out


def test_the_schedule_of_an_algorithm_that_is_asked_for(capsys):
    options = ["-n", "4x1", "-b", "4K", "--algorithm", "ring", "--protocol", "simple", "--schedule"]
    assert main(["explain", "all_reduce", *options]) == 0
    out = capsys.readouterr().out
    assert "takes ring by simple, 1 channel(s): algorithm 'ring' and protocol 'simple' asked for" in out
    assert "fold in[" in out
    assert "send" in out


def test_the_steps_of_one_rank_and_one_lane(capsys):
    options = ["explain", "all_reduce", "-n", "8x1", "--algorithm", "tree", "--schedule"]
    assert main([*options, "--rank", "3", "--rank", "4", "--lane", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("lane 1") + 1 :]
    assert table[0].split("  ")[0] == "step"
    assert table[0].split()[1:] == ["rank", "3", "rank", "4"]
    assert "lane 0" not in lines
    for wrong, said in (("--rank=8", "rank 8 is none of the schedule's, which are 0 to 7"), ("--lane=2", "0 to 1")):
        assert main([*options, wrong]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("call", "why"), [("recv", "is the operand of another call"), ("all_reduce", None)])
def test_what_the_oracle_never_checks(capsys, call, why):
    assert main(["explain", call, "-n", "2x1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["unchecked"]
    assert main(["explain", call, "-n", "2x1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    if why is None:
        assert said == ""
        assert "oracle" not in shown
    else:
        assert said.startswith(f"JAXRING_CHECKSUM=oracle does not check {call}: ")
        assert why in said
        assert said in shown


def test_ranks_that_do_nothing_in_a_lane_are_left_out(capsys):
    options = ["-n", "2x4", "--algorithm", "hier_ring", "--schedule", "--lane", "0"]
    assert main(["explain", "all_reduce", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = lines[lines.index("lane 0") + 1].split()[1:]
    assert shown == ["rank", "0", "rank", "4"]


OWN = """
from jaxring import register_algorithm
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Step

IN, OUT = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)


def pair(spec, rank):
    other = Peer(1 - rank)
    fold = Step(Kind.REDUCE, IN, OUT, recv=(Peer(0), Peer(1)), flags=Flag.FINAL)
    return [[Step(Kind.MOVE, IN, send=(other,)), fold]]


def wrong(spec, rank):
    return [[Step(Kind.MOVE, IN, send=(Peer(1 - rank),))]]


def failing(spec, rank):
    one, other = [rank]
    return pair(spec, one)


register_algorithm("exchange", "all_reduce", pair)
register_algorithm("wrong", "all_reduce", wrong)
register_algorithm("failing", "all_reduce", failing)
"""


def test_an_algorithm_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "half.py").write_text("x = (1,\n", encoding="utf-8")

    def explain(*options, collective="all_reduce"):
        command = [sys.executable, "-m", "jaxring.cli", "explain", collective, "-n", "2x1", *options]
        return starting.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    done = explain("--import", "mine", "--algorithm", "exchange", "--schedule")
    assert done.returncode == 0, done.stderr
    assert "takes exchange by simple, 1 channel(s): algorithm 'exchange' asked for; " in done.stdout
    assert "\n  exchange/simple " in done.stdout
    assert "recv 1 · fold in[0]" in done.stdout
    done = explain("--import", "mine", "--algorithm", "exchanges")
    assert done.returncode == 2
    assert "there is no algorithm 'exchanges': did you mean exchange?" in done.stderr
    done = explain("--import", "yours")
    assert (done.returncode, done.stderr) == (1, "jaxring explain: Cannot import yours: No module named 'yours'.\n")
    done = explain("--import", "half")
    assert (done.returncode, done.stderr) == (
        1,
        "jaxring explain: Cannot import half: '(' was never closed (half.py, line 1).\n",
    )
    done = explain("--import", "mine", "--algorithm", "exchange", collective="all_gather")
    assert (done.returncode, done.stderr) == (
        1,
        "jaxring explain: No algorithm 'exchange' is registered for all_gather.\n",
    )
    # Beside the others where none is asked for, and not taken.
    done = explain("--import", "mine", "--profile", "commodity")
    assert done.returncode == 0, done.stderr
    assert "takes direct by simple" in done.stdout
    for row in ("  direct/simple ", "  exchange/simple "):
        assert done.stdout.count(row) == 1
    said = " ".join(done.stdout.split())
    assert "exchange is of your own: a call takes it where it asks for algorithm='exchange'" in said
    assert "wrong, of your own, is no candidate here: wrong all_reduce of 2 ranks: rank 1" in said
    assert "failing, of your own, is no candidate here: not enough values to unpack" in said
    listed = json.loads(explain("--import", "mine", "--profile", "commodity", "--json").stdout)
    own = next(each for each in listed["candidates"] if each["name"] == "exchange/simple")
    assert own["us"] == own["predicted_us"] > 0
    assert listed["algorithm"] == "direct"
    assert [each["us"] for each in listed["candidates"]] == sorted(each["us"] for each in listed["candidates"])
    # What is wrong with a schedule is a sentence, what is wrong with the function has its line.
    done = explain("--import", "mine", "--algorithm", "wrong")
    assert done.returncode == 1
    assert done.stderr.startswith("jaxring explain: ")
    assert done.stderr.count("\n") == 1
    done = explain("--import", "mine", "--algorithm", "failing")
    assert done.returncode == 1
    assert 'mine.py", line 19, in failing\n    one, other = [rank]\n' in done.stderr
    assert "\nValueError: not enough values to unpack" in done.stderr


def test_json_says_what_the_tables_say(capsys):
    options = ["explain", "all_reduce", "-n", "4x2", "--hosts", "2", "-b", "64M"]
    assert main([*options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(options) == 0
    shown = capsys.readouterr().out
    assert f"takes {said['algorithm']} by {said['protocol']}, {said['channels']} channel(s): {said['reason']}." in shown
    for candidate in said["candidates"]:
        assert f"  {candidate['name']} " in shown
        assert f" {figures(candidate['predicted_us'])} " in shown
        assert candidate["us"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["all_reduce", "-n", "3x1", "--hosts", "2"], "3 processes cannot be shared equally by 2 hosts"),
        (["all_to_all", "-n", "4x1", "--algorithm", "ring"], "does not serve all_to_all"),
    ],
)
def test_what_cannot_be(capsys, arguments, says):
    assert main(["explain", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_sizes_are_written_as_in_a_program(capsys):
    assert main(["explain", "all_reduce", "-b", "1500000"]) == 0
    decision = Decision("all_reduce", "sum", "float32", 1500000, "x", "", 1, 1, "direct", "ll", 1, (), "", ())
    for text in (capsys.readouterr().out, str(decision)):
        assert "1.431 MiB" in text


def test_calls_that_play_the_schedules_of_others(capsys):
    def explain(*options):
        assert main(["explain", *options, "--profile", "commodity", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    barrier = explain("barrier", "-n", "2x2")
    assert barrier | {"unchecked": ""} == explain("all_reduce", "-n", "2x2", "-b", "4", "-d", "uint32")
    # As the runtime has it: see jaxring/runtime/choice.py.
    small, between = ("-b", "256"), ("-n", "4x1", "--hosts", "4")
    assert explain("all_to_all", *between, *small)["protocol"] != "simple"
    ragged = explain("ragged_all_to_all", *between, *small)
    assert (ragged["protocol"], ragged["channels"]) == ("simple", 1)
    assert explain("permute", "-n", "1x2")["protocol"] == "memory"
    for half in ("send", "recv"):
        found = explain(half, "-n", "1x2")
        assert found["protocol"] in ("simple", "ll")
        assert found["channels"] == 1
        # A lone rank's message to itself: neither half reads the other's memory.
        assert explain(half, "-n", "1x1")["protocol"] == "simple"
    assert main(["explain", "ragged_all_to_all", "-n", "2x1"]) == 0
    assert capsys.readouterr().out.startswith("ragged_all_to_all of 1 MiB float32, 2 ranks in 2 process(es)")
