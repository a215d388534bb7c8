"""Lines of pages are forks where a shell would do nothing else, and come to the same."""

from __future__ import annotations

import os

import pytest

from tests.starting.lines import run_line

PROGRAM = "import os, sys\nprint(os.environ.get('ONE'), os.environ.get('TWO'), sys.argv[1:])\nsys.exit(len(sys.argv))\n"


@pytest.mark.parametrize(
    "line",
    ["python program.py", "ONE=1 TWO='two words' python program.py 'an argument' -x", "ONE=a=b python program.py"],
)
def test_a_shell_does_the_same(line, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ends = [run_line(line, os.environ, shell=shell, cwd=tmp_path, timeout=60) for shell in (True, False)]
    assert (ends[0].returncode, ends[0].stdout) == (ends[1].returncode, ends[1].stdout)
    assert ends[0].returncode > 0


@pytest.mark.parametrize(
    ("line", "forked"),
    [
        ("python program.py", True),
        ("jaxring --version", True),
        ("python program.py | cat", False),
        ("export ONE=1", False),
    ],
)
def test_what_is_forked(line, forked, tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text("pass")
    started = []
    monkeypatch.setattr("tests.starting.lines.run", lambda argv, **_: started.append(argv))
    run_line(line, os.environ, cwd=tmp_path, timeout=60)
    assert bool(started) == forked
