"""What the commands print in a terminal of 80 columns: no line is wider, and no word is taken apart."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from jaxring.cli import COMMANDS, main, terminal
from tests import ROOT

HELP = [[name, "--help"] for name in COMMANDS]
HELP += [["trace", name, "--help"] for name in ("dump", "diff", "slow", "view", "replay")]
ALL = [
    ["--help"],
    ["--version"],
    *HELP,
    ["explain", "all_reduce", "-n", "4x2", "--hosts", "2", "--profile", "commodity"],
    ["explain", "all_to_all", "-n", "4x2", "-b", "1K", "--schedule"],
    ["simulate", "--bytes", "64K,1M", "--algorithm", "ring,tree"],
    ["topo"],
    ["topo", "--paths"],
    ["doctor"],
    ["doctor", "--all"],
]
# Of jobs that there are not, by values made by hand.
BY_HAND = ["top", "doctor --job"]
DRAWN = "│┃─━┌┏├└┡╇"
# One process prints it all, as most of each command's time is that of its imports.
PRINTS = """
import json, sys
from jaxring.cli import main
from tests.cli.by_hand import SHOWN

for argv in json.loads(sys.argv[1]):
    try:
        main(argv)
    except SystemExit as end:
        assert not end.code, (argv, end.code)
    print("\\f", flush=True)
for show in SHOWN.values():
    show()
    print("\\f", flush=True)
"""


@pytest.fixture(scope="module")
def shown():
    """What each command shows, in lines."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    argv = [sys.executable, "-c", PRINTS, json.dumps(ALL)]
    child = subprocess.Popen(argv, env=env, stdin=follower, stdout=follower, stderr=follower, cwd=ROOT)
    os.close(follower)
    text = b""
    try:
        while data := os.read(leader, 65536):
            text += data
    except OSError:  # the other end is closed
        child.wait()
    finally:  # also where pytest ends the fixture, since a command hangs
        child.kill()
        os.close(leader)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.decode())
    assert child.wait() == 0, plain
    # Without what was drawn over: the line that shows progress.
    parts = re.sub(r"[^\n]*\r\x1b\[K", "", plain).split("\f")
    names = [*map(" ".join, ALL), *BY_HAND]
    assert len(parts) == len(names) + 1
    return {name: part.strip("\r\n").splitlines() for name, part in zip(names, parts, strict=False)}


@pytest.mark.parametrize("command", [*map(" ".join, ALL), *BY_HAND])
def test_no_line_is_wider(command, shown):
    assert shown[command]
    assert [line for line in shown[command] if len(line) > 80] == []


def test_a_table_keeps_words_whole_and_leaves_out_what_matters_least(shown, capsys):
    command = next(command for command in shown if command.startswith("simulate --bytes"))
    text = "\n".join(shown[command])
    for word in ("algorithm", "channel(s)", "ring/simple,", "tree/simple,", "nvlink"):
        assert word in text
    assert "took" not in text  # the table may have its head in two lines
    assert main(command.split()) == 0
    assert "took s" in capsys.readouterr().out


def test_ranks_that_do_not_fit_beside_the_others_follow_below(shown):
    lines = next(lines for command, lines in shown.items() if command.endswith("--schedule"))
    heads = [line for line in lines if line.startswith("step ")]
    assert len(heads) > 1
    assert list(itertools.chain(*(re.findall(r"rank (\d+)", head) for head in heads))) == list("01234567")


def test_an_example_of_the_help_stays_a_line_and_its_remark_goes_below(shown):
    lines = shown["run --help"]
    at = lines.index("    jaxring run --nnodes 2 --node-rank 0 --coordinator a:4321 -n 4 train.py")
    assert lines[at + 1].startswith("            the same by hand")


def test_a_command_in_backquotes_is_not_divided_where_its_source_is():
    shown = terminal.Help("jaxring")._fill_text(
        "For a job on two hosts use `jaxring run\n--hosts a,b` from here.", 40, ""
    )
    assert shown == "For a job on two hosts use\n`jaxring run --hosts a,b` from here."


def test_why_a_link_cannot_be_made_is_said_in_full(shown):
    said = " ".join(" ".join(shown["doctor --job"]).split())
    assert "192.0.2.17 port 41234: Connection refused; fd00::17 port 41234: not tried within 40 s" in said


def test_a_pipe_gets_a_line_for_each_row_and_nothing_drawn(shown, capsys):
    # The same commands, whose output a terminal shows in boxes.
    for command in ("topo", "doctor", "simulate --bytes 64K,1M --algorithm ring,tree"):
        assert set("".join(shown[command])) & set(DRAWN), command
        main(command.split())
        out = capsys.readouterr().out
        assert not set(out) & set(DRAWN), command
        assert not [line for line in out.splitlines() if line != line.rstrip()]
    (row,) = (line for line in out.splitlines() if " 1 MiB " in line and " ring/simple, " in line)
    assert row.split()[0] == "8"
