"""The drawing on docs/concepts/topology.md is made as it says. test_commands.py has the page's other commands."""

from __future__ import annotations

import shlex

import pytest

from jaxring.cli import main
from tests import ROOT

PAGE = ROOT / "docs/concepts/topology.md"
DRAWN = "topo --file examples/topology/two_sockets.xml --rings --svg"


@pytest.fixture
def in_checkout(monkeypatch, tmp_path):
    """Where the page's commands find their files, and leave theirs."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_drawing_is_the_command_s(in_checkout, capsys):
    assert DRAWN in " ".join(PAGE.read_text().split())
    assert main([*shlex.split(DRAWN), "out/drawn.svg"]) == 0
    assert (in_checkout / "out/drawn.svg").read_text() == (ROOT / "docs/concepts/topology.svg").read_text()
