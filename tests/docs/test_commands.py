"""The commands on the pages: those that are shown with their output print that, and the options of all others exist.

A ``console`` block has commands after ``$ `` and what they print, in which ``...`` stands for any text, and in a line
of its own for any lines. They run in a folder with the page's files: its blocks with a ``title="NAME"``. Commands
without their output are in ``sh`` blocks: test_shell_blocks.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jaxring.cli import _parser
from jaxring.settings import retired
from jaxring.settings.page import markdown
from tests import ROOT
from tests.docs.test_docs import FENCE, PAGES
from tests.starting.lines import run_line

if TYPE_CHECKING:
    import subprocess

TITLE = re.compile(r'title="([\w.]+)"')
# For users; the others also name variables of the build and of tests.
USERS = [page for page in PAGES if page.parent.name in ("howto", "start", "reference") or page.name == "faq.md"]
TOOL = re.compile(r"(?:^|[|;&] *|srun (?:-\S+ )*|\w+=\S* )(jaxring [a-z]+(?![a-z:]).*?)(?= *(?:[|;>&#]|\d>|$))")


def files(page: Path) -> dict[str, str]:
    found = [(TITLE.search(info), code) for _, info, code in FENCE.findall(page.read_text())]
    return {title[1]: code for title, code in found if title}


def consoles(page: Path) -> list[str]:
    return [code for language, _, code in FENCE.findall(page.read_text()) if language == "console"]


def in_folder_of(page: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command where the page's files, the examples and a folder for results are."""
    if not (folder / "out").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "out").mkdir()
        for name, code in files(page).items():
            (folder / name).write_text(code)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAXRING_")}
    return run_line(command, inherited | {"JAX_PLATFORMS": "cpu", "COLUMNS": "120"}, cwd=folder, timeout=120)


def printed(block: str) -> list[tuple[str, str]]:
    """The commands of a block, each with a pattern of what it prints."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return [(command, pattern(shown)) for command, shown in zip(parts[::2], parts[1::2], strict=True)]


def pattern(shown: str) -> str:
    lines = [
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r" *\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


WITH_OUTPUT = [page for page in PAGES if consoles(page)]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("page", WITH_OUTPUT, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for command, expected in [each for block in consoles(page) for each in printed(block)]:
        ended = in_folder_of(page, tmp_path, command)
        assert re.fullmatch(expected, ended.stdout), f"{command}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_a_page_are_run_by_its_commands(page: Path) -> None:
    commands = " ".join(code for language, _, code in FENCE.findall(page.read_text()) if language in ("console", "sh"))
    assert [name for name in files(page) if name not in commands] == []


def tools(page: Path) -> list[str]:
    """The commands `jaxring ...` in the page's blocks of anything but Python."""
    found = []
    for language, _, code in FENCE.findall(page.read_text()):
        if language in ("sh", "console"):
            for line in code.replace("\\\n", " ").splitlines():
                shell = language == "sh" or line.startswith("$ ")
                found += TOOL.findall(line.removeprefix("$ ").strip()) if shell else []
    return found


COMMANDS = sorted({command for page in PAGES for command in tools(page)})


@pytest.mark.parametrize("command", COMMANDS)
def test_tools_and_options_exist(command: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            _parser().parse_args(shlex.split(command)[1:])
            code = 0
        except SystemExit as end:  # also of --help
            code = end.code
    assert code == 0, said.getvalue()


def test_variables_exist() -> None:
    known = set(re.findall(r"^\| (\w+)", markdown(), re.MULTILINE)) | {each.name for each in retired.RETIRED}
    for page in USERS:
        named = set(re.findall(r"\bJAXRING_([A-Z][A-Z0-9_]+)", page.read_text()))
        assert named <= known, page.name


def test_there_is_something_to_check() -> None:
    assert len(WITH_OUTPUT) >= 7
    assert len(COMMANDS) >= 25


def test_dots_stand_for_text_and_for_lines() -> None:
    ((_, expected),) = printed("$ x\na ... b\n...\nend\n")
    assert re.fullmatch(expected, "a 1 b\nmore\nmore\nend\n")
    assert not re.fullmatch(expected, "a 1 c\nend\n")
    assert not re.fullmatch(expected, "a 1 b\nend\nmore\n")
