"""The commands of examples/README.md, as they stand there, and that the examples notice a wrong result."""

from __future__ import annotations

import ast
import os
import pathlib
import re
from typing import TYPE_CHECKING

import pytest

from tests import ROOT
from tests.starting.lines import run_line

if TYPE_CHECKING:
    import subprocess

README = ROOT / "examples" / "README.md"
COMMAND = re.compile(r"^\| `([^`]*examples/(\w+)\.py)`", re.MULTILINE)
COMMANDS = {name: command for command, name in COMMAND.findall(README.read_text())}
# They have tests of their own. Options that cut them short.
CUT = ["--steps", "8", "--width", "32"]
ELSEWHERE = {name: [*CUT, "--layers", "1"] for name in ("train_lm", "compressed_lm", "diloco_lm")} | {"recover_lm": CUT}
SMALL = [name for name in COMMANDS if name not in ELSEWHERE]
# It calls no collective; tests/frameworks/ counts those that the compiler inserts.
CALLS_NONE = {"fsdp_nnx"}
SAYS = re.compile(r"\bis that of\b|\bare those of\b")


def run(command: str, *, shell: bool = False) -> subprocess.CompletedProcess[str]:
    """The command in the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAXRING_", "JAX_", "PJRT_"))}
    return run_line(
        command, env | {"JAX_PLATFORMS": "cpu", "JAXRING_TIMEOUT": "60"}, shell=shell, cwd=ROOT, timeout=240
    )


def test_the_list_is_complete():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == set(COMMANDS)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.sampled(3)
def test_command(name):
    done = run(COMMANDS[name], shell=name == SMALL[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS.search(done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_commands_of_the_docstring(name):
    docstring = ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text()))
    commands = re.findall(r"^ {4}(\S.* examples/\w+\.py)$", docstring, re.MULTILINE)
    assert commands[0] == COMMANDS[name]
    for command in commands[1:]:  # in several processes
        done = run(command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(SAYS.findall(done.stdout)) == 1, done.stdout  # one process speaks


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in CALLS_NONE])
@pytest.mark.multiprocess
def test_a_wrong_result_is_noticed(name):
    worker = pathlib.Path(__file__).with_name("wrong_results.py")
    script = f"examples/{name}.py"
    assert script in COMMANDS[name]
    command = [COMMANDS[name].replace(script, f"{worker} {script}"), *ELSEWHERE.get(name, ())]
    command[0] = command[0].replace("-n 4 --devices-per-process 2", "-n 2")  # each process compiles all of it
    done = run(" ".join(command))
    assert done.returncode != 0, done.stdout
    assert ("FAILED: " if name in ELSEWHERE else "AssertionError") in done.stdout + done.stderr, str(done)
