"""The commands on the pages that look at described machines run: they start no job, and need no machine of that kind.

They run in the page's order, as the later ones read what the earlier ones write, and on at most a few hosts. What
`console` blocks and docs/concepts/topology.md show is compared in test_commands.py and test_topology_page.py.
"""

from __future__ import annotations

import re
import shlex

import pytest

from jaxring.cli import main
from tests import ROOT
from tests.docs.test_commands import TOOL
from tests.docs.test_docs import FENCE, PAGES

KINDS = ("simulate", "explain", "topo")
# What is simulated to fail, as the page says.
FAILS = "--death"


def commands(page):
    """Of the blocks that are no Python and have no prompt."""
    for language, _, code in FENCE.findall(page.read_text()):
        if language in ("", "sh"):
            for line in code.replace("\\\n", " ").splitlines():
                for command in TOOL.findall(line) if line.startswith("jaxring ") else []:
                    if command.split()[1] in KINDS and "--job" not in command:
                        yield command


def on_few_hosts(command):
    return re.sub(
        r"(--nodes) [\d,]+", lambda found: f"{found[1]} {min(8, *map(int, re.findall(r'[0-9]+', found[0])))}", command
    )


def step(page):
    """The list of a training step that the page shows and its commands read; empty where it shows none."""
    return "".join(code for _, _, code in FENCE.findall(page.read_text()) if code.startswith('[{"compute_us"'))


WITH_COMMANDS = [page for page in PAGES if list(commands(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_they_run(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "out").mkdir()
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    (tmp_path / "step.json").write_text(step(page))
    monkeypatch.chdir(tmp_path)
    for command in map(on_few_hosts, commands(page)):
        code = main(shlex.split(command)[1:])
        said = capsys.readouterr()
        assert code == int(FAILS in command), f"{command}\n{said.out}{said.err}"
        assert said.out or said.err, command


def test_there_is_something_to_run():
    assert sum(len(list(commands(page))) for page in WITH_COMMANDS) >= 12
