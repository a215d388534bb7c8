"""The pairs of Python and jax on which `.ci/run` tests are those that the project names elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import types

import pytest

from tests import ROOT
from tests.conftest import pytest_collection_modifyitems

PAIRS = re.findall(r'"(3\.\d+) ([\d.]+)"', (ROOT / ".ci" / "run").read_text())
# make, for `.ci/run`: {fails} fails once {held} has begun, which goes on until it is ended.
MAKE = """#!/bin/sh
echo make "$@" XLA_FLAGS=$XLA_FLAGS
case "$1" in
"{held}") echo $$ >{folder}/pid; mv {folder}/pid {folder}/held; exec sleep 60 ;;
"{fails}") if [ "{held}" ]; then until [ -e {folder}/held ]; do sleep 0.1; done; fi; echo said of "$1"; exit 3 ;;
esac
"""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_pairs_go_from_the_oldest_to_the_newest():
    assert len(PAIRS) >= 3
    assert sorted(PAIRS, key=lambda pair: tuple(map(numbers, pair))) == PAIRS


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("README.md", "Python {0} with jax {1}"),
        (".github/ISSUE_TEMPLATE/bug.yml", "jax {1} on Python {0}"),
        ("docs/recovery.md", "jax {1}"),
        ("pyproject.toml", '"Programming Language :: Python :: {0}"'),
    ],
)
def test_each_pair_is_named(file, sentence):
    text = (ROOT / file).read_text()
    for pair in PAIRS:
        assert sentence.format(*pair) in text, file


def test_the_workflow_has_each_python():
    """The first is the container's own."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    first, *others = (python for python, _ in PAIRS)
    assert f"image: python:{first}-" in text
    assert f"uv python install {' '.join(others)}\n" in text


def test_no_other_python_is_promised():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", c)]
    assert named == [python for python, _ in PAIRS]
    assert PROJECT["requires-python"] == f">={PAIRS[0][0]}"


def test_the_oldest_jax_is_the_least_that_is_required():
    assert f"jax>={PAIRS[0][1]}" in PROJECT["dependencies"]


def run(
    tested: tuple[str, str], folder: pathlib.Path, fails: str = "", held: str = "", turn: int | None = None
) -> subprocess.CompletedProcess:
    """`.ci/run`, all of it or a turn, where make's default environment has this pair, and make prints how it is called:
    nothing else that the script needs does anything. One target of make's fails, and one goes on until it is ended.
    """
    script = (ROOT / ".ci" / "run").read_text()
    for name in {"nvcc", *(f"python{python}" for python, _ in PAIRS), *re.findall(r"^need (\S+)", script, re.M)}:
        folder.joinpath(name).write_text("#!/bin/sh\n")
    folder.joinpath("make").write_text(MAKE.format(fails=fails, held=held, folder=folder))
    folder.joinpath("clang++").write_text("#!/bin/sh\necho /\n")  # a path that exists
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {shlex.join(tested)}\n")
    for path in (*folder.glob("[!.]*"), python):
        path.chmod(0o755)
    folder.joinpath(".ci").mkdir()
    copy = shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "XLA_FLAGS": "quick"}
    arguments = ["--all"] if turn is None else ["--turn", str(turn)]
    return subprocess.run(
        ["bash", copy, *arguments], env=environ, stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )


def made(tested: tuple[str, str], folder: pathlib.Path, turn: int | None = None) -> list[str]:
    """The calls of make by `.ci/run`, all of it or a turn, where make's default environment has this pair."""
    done = run(tested, folder, turn=turn)
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("make ")]


@pytest.mark.parametrize("tested", PAIRS)
def test_ci_runs_all_cases_on_the_newest_pair_and_compiled_programs_on_the_first_too(tested, tmp_path):
    calls = made(tested, tmp_path)
    newest = PAIRS[-1]
    # What the newest pair runs again is left out, but where it is the newest pair.
    which = "-m 'slow' " if tested == newest else "-m 'slow and not repeated' "
    (slow,) = (call for call in calls if which in call)
    (compiled,) = _compiled([call for call in calls if "VENV=" not in call])  # make's default environment
    counted = "ON" if tested == newest else "OFF"  # of executed lines, on the newest pair only
    assert slow.startswith(f"make pytest COVERAGE={counted} PYTEST_ARGS=--no-skips "), slow
    assert _left_out(slow) == _run(compiled), "what one leaves out, the other runs"
    for pair in PAIRS:
        on_it = [call for call in calls if f"VENV=.venv-{pair[0]} JAX={pair[1]}" in call and "pytest" in call]
        versions = [call for call in on_it if call.startswith("make pytest-versions ")]
        all_cases = [call for call in versions if "slow or sampled" in call]
        at_an_end = pair in (PAIRS[0], newest) and pair != tested
        assert (len(all_cases), len(_compiled(on_it))) == (pair == newest != tested, at_an_end), on_it
        assert all(_left_out(call) == _run(compiled) for call in versions if at_an_end), on_it


def test_ci_traces_and_compiles_with_the_newest_jax_on_the_python_before_too(tmp_path):
    python, newest = PAIRS[1][0], PAIRS[-1][1]
    calls = [each for each in made(PAIRS[0], tmp_path) if f"VENV=.venv-{python} " in each]
    (call,) = (each for each in calls if each.startswith("make pytest-newer PYTHON="))
    assert f" NEWER={newest} " in call
    assert call == calls[-1], "the environment has another jax afterwards"
    assert _run(call) == {"tests/tracing", "tests/dropin/whole_program"}


@pytest.mark.parametrize("tested", PAIRS[:1])
def test_the_turns_of_ci_are_all_of_it_and_three_have_a_third_of_the_slow_tests_each(tested, tmp_path):
    def comparable(call):
        """Which tests and whether lines are counted aside; a lane beside may print at any time."""
        return " ".join(re.sub(r"COVERAGE=\w+ |--slow-share \S+ |-m '[^']*sampled' ", "", call).split())

    turns = _turns_of_the_workflow()
    folders = iter(tmp_path / str(i) for i in range(len(turns) + 1))

    def calls(turn=None):
        folder = next(folders)
        folder.mkdir()
        return [each.replace(str(folder), "") for each in made(tested, folder, turn)]

    whole, of_turns = calls(), [calls(turn) for turn in turns]
    assert not [call for call in whole if "--slow-share" in call]
    assert {comparable(call) for of_it in of_turns for call in of_it} == {comparable(call) for call in whole}
    assert all(len(of_it) < len(whole) for of_it in of_turns)
    slow = [call for of_it in of_turns for call in of_it if "-m 'slow" in call or "or sampled" in call]
    shares = [re.findall(r" --slow-share (\S+) ", call) for call in slow]
    thirds = [[f"{k}/3"] for k in range(3)]
    assert sorted(shares) == sorted(2 * thirds), "in make's environment and on the newest pair"


def _turns_of_the_workflow() -> list[int]:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (turns,) = re.findall(r"^ +turn: \[(.*)\]$", text, re.MULTILINE)
    return [int(turn) for turn in turns.split(",")]


@pytest.mark.parametrize("turn", ["8", "x"])
def test_there_are_no_other_turns(turn):
    done = subprocess.run([ROOT / ".ci" / "run", "--turn", turn], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: .ci/run [--turn 0 to 7 | --all]")


class Item:
    """A test as pytest collects it."""

    def __init__(self, nodeid, marks=()):
        self.nodeid = nodeid
        self._marks = marks

    def get_closest_marker(self, name):
        return name if name in self._marks else None


def test_each_slow_test_is_in_one_share():
    def taken(share):
        deselected = []
        hook = types.SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
        config = types.SimpleNamespace(hook=hook, getoption={"--slow-share": share}.get)
        items = slow + others
        pytest_collection_modifyitems(config, items)
        assert sorted(items + deselected, key=id) == sorted(slow + others, key=id)
        assert all(item in items for item in others)
        return [item for item in items if item in slow]

    slow = [Item(f"tests/plan/test_table_cost.py::test[{i}]", ["slow"]) for i in range(40)]
    others = [Item(f"tests/plan/test_table_cost.py::test_quick[{i}]") for i in range(40)]
    shares = [taken(f"{k}/3") for k in range(3)]
    assert all(shares)
    assert sorted(itertools.chain(*shares), key=id) == sorted(slow, key=id)
    assert taken(None) == slow


def test_a_share_is_asked_for_by_an_option():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:benchmark", "--slow-share", "1/3"]
    done = subprocess.run(
        [*command, "tests/plan/test_table_cost.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    collected, all_of_them = map(int, re.findall(r"^(\d+)/(\d+) tests collected", done.stdout, re.MULTILINE)[0])
    assert 0 < collected < all_of_them


def _compiled(calls: list[str]) -> list[str]:
    """The calls that run programs as XLA compiles them for users: all tests of their files, whatever their marks."""
    whole = [call for call in calls if " -m " not in call and " tests/sharded " in call]
    return [call for call in whole if call.startswith("make pytest ") and call.endswith("XLA_FLAGS=")]


def _run(call: str) -> set[str]:
    return {word for word in call.split() if word.startswith("tests/")}


def _left_out(call: str) -> set[str]:
    return {word.partition("=")[2] for word in call.split() if word.startswith("--ignore=")}


def test_a_lane_beside_the_tests_that_fails_fails_the_run_and_is_shown(tmp_path):
    done = run(PAIRS[0], tmp_path, "tsan-build")
    assert done.returncode == 3, done.stdout
    assert "said of tsan-build" in done.stdout.partition("tsan\033")[2]
    assert "make tsan " not in done.stdout, "what it was to build is not run"
    assert "all passed" not in done.stdout


def test_what_runs_beside_the_tests_ends_with_them(tmp_path):
    """The tests fail while the first lane beside them has yet to end."""
    done = run(PAIRS[0], tmp_path, "test", "tidy-library")
    assert done.returncode == 3, done.stdout
    stat = pathlib.Path("/proc", (tmp_path / "held").read_text().strip(), "stat")
    deadline = time.monotonic() + 30
    # Once it has been reaped, its file is gone, also between opening and reading it.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(") ")[2][0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)
