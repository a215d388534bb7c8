"""The script that runs README's commands as pasted, with programs in place of the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests import ROOT

PYTHON = 'echo "python" >>said; grep -q "jaxring.all_reduce(x.sum()" "$1" && echo {result}'


@pytest.fixture
def readme(tmp_path):
    """Runs the script where README's example prints ``result``; returns how it ended, and what it ran."""
    (tmp_path / "tests" / "package").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "package" / "readme.sh", tmp_path / "tests" / "package")
    shutil.copy(ROOT / "README.md", tmp_path)

    def run(result="28.0", **others):
        commands = tmp_path / "commands"
        commands.mkdir()
        texts = {name: f'echo "{name} $*" >>said' for name in ("make", "pip", "jaxring")}
        for name, text in (texts | {"python": PYTHON.format(result=result)} | others).items():
            (commands / name).write_text(f"#!/bin/bash\n{text}\n")
            (commands / name).chmod(0o755)
        env = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
        command = ["bash", "tests/package/readme.sh"]
        ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        return ended, (tmp_path / "said").read_text().splitlines()

    return run


def test_each_command_runs_in_the_order_of_the_page(readme):
    ended, said = readme()
    assert ended.returncode == 0, ended.stderr
    assert said[:4] == ["make demo", "make test", "pip install .", "python"]
    assert [line.split()[:3] for line in said[4:]] == [["jaxring", "bench", "all_reduce"]]


def test_an_example_that_prints_something_else_fails(readme):
    ended, said = readme("27.0")
    assert ended.returncode == 1
    assert "README's example does not print 28.0 but 27.0" in ended.stderr
    assert said[-1] == "python"


def test_a_command_that_fails_ends_it(readme):
    ended, said = readme(make='echo "make $*" >>said; [ "$1" != test ]')
    assert ended.returncode == 1
    assert said == ["make demo", "make test"]
