"""`jaxring explain`: the planner's decision for a described job."""

from __future__ import annotations

import json

import pytest

from jaxring.cli import main
from jaxring.runtime.explain import Decision


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


def test_json_says_what_the_tables_say(capsys):
    options = ["explain", "all_reduce", "-n", "4x2", "--hosts", "2", "-b", "64M"]
    assert main([*options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(options) == 0
    shown = capsys.readouterr().out
    assert f"takes {said['algorithm']} by {said['protocol']}, {said['channels']} channel(s): {said['reason']}." in shown
    for candidate in said["candidates"]:
        assert f"  {candidate['name']} " in shown
        assert f" {candidate['predicted_us']:.4g} " in shown
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
