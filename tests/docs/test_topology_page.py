"""The outputs on docs/concepts/topology.md are those of the commands above them, and its drawing is made as it says."""

from __future__ import annotations

import re
import shlex

import pytest

from jaxring.cli import main
from tests import ROOT

PAGE = ROOT / "docs/concepts/topology.md"
EXAMPLE = re.compile(r"^```\n\$ jaxring (topo [^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE.read_text())
DRAWN = "topo --file examples/topology/two_sockets.xml --rings --svg"


@pytest.fixture
def in_checkout(monkeypatch, tmp_path):
    """Where the page's commands find their files, and leave theirs."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_command_prints_what_the_page_shows(command, output, in_checkout, capsys):
    assert main(shlex.split(command)) == 0
    texts = capsys.readouterr().out, output
    printed, shown = (re.sub(r"(Searched for) \d+\.\d+ s", r"\1 ... s", text) for text in texts)
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def test_the_page_has_examples():
    assert len(EXAMPLES) >= 5


def test_the_drawing_is_the_command_s(in_checkout, capsys):
    assert DRAWN in " ".join(PAGE.read_text().split())
    assert main([*shlex.split(DRAWN), "out/drawn.svg"]) == 0
    assert (in_checkout / "out/drawn.svg").read_text() == (ROOT / "docs/concepts/topology.svg").read_text()
