"""The pairs of Python and jax on which `.ci/run` tests are those that the project names elsewhere."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest

from tests import ROOT

PAIRS = re.findall(r'"(3\.\d+) ([\d.]+)"', (ROOT / ".ci" / "run").read_text())
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
        (".github/workflows/ci.yml", "\n            {0}\n"),
        ("docs/recovery.md", "jax {1}"),
        ("pyproject.toml", '"Programming Language :: Python :: {0}"'),
    ],
)
def test_each_pair_is_named(file, sentence):
    text = (ROOT / file).read_text()
    for pair in PAIRS:
        assert sentence.format(*pair) in text, file


def test_no_other_python_is_promised():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", c)]
    assert named == [python for python, _ in PAIRS]
    assert PROJECT["requires-python"] == f">={PAIRS[0][0]}"


def test_the_oldest_jax_is_the_least_that_is_required():
    assert f"jax>={PAIRS[0][1]}" in PROJECT["dependencies"]


def made(tested: tuple[str, str], folder: pathlib.Path) -> list[str]:
    """The calls of make by `.ci/run` where make's default environment has this pair. Nothing else that it needs does
    anything."""
    script = (ROOT / ".ci" / "run").read_text()
    for name in {"nvcc", *(f"python{python}" for python, _ in PAIRS), *re.findall(r"^need (\S+)", script, re.M)}:
        folder.joinpath(name).write_text("#!/bin/sh\n")
    folder.joinpath("make").write_text('#!/bin/sh\necho make "$@" XLA_FLAGS=$XLA_FLAGS\n')
    folder.joinpath("clang++").write_text("#!/bin/sh\necho /\n")  # a path that exists
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {shlex.join(tested)}\n")
    for path in (*folder.glob("[!.]*"), python):
        path.chmod(0o755)
    folder.joinpath(".ci").mkdir()
    run = shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "XLA_FLAGS": "quick"}
    done = subprocess.run(["bash", run], env=environ, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in done.stdout.splitlines() if line.startswith("make ")]


@pytest.mark.parametrize("tested", PAIRS)
def test_ci_runs_all_cases_and_compiled_programs_on_the_first_and_the_newest_pair(tested, tmp_path):
    calls = made(tested, tmp_path)
    assert "make pytest PYTEST_ARGS=--no-skips --durations=40 -m slow XLA_FLAGS=quick" in calls
    for pair in PAIRS:
        on_it = [call for call in calls if f"VENV=.venv-{pair[0]} JAX={pair[1]}" in call and "pytest" in call]
        all_cases = [call for call in on_it if call.startswith("make pytest-versions ") and "slow or sampled" in call]
        at_an_end = pair in (PAIRS[0], PAIRS[-1]) and pair != tested
        assert (len(all_cases), len(_compiled(on_it))) == (at_an_end, at_an_end), on_it
    assert len(_compiled([call for call in calls if "VENV=" not in call])) == 1, calls  # make's default environment


def _compiled(calls: list[str]) -> list[str]:
    """The calls that run programs as XLA compiles them for users, with all cases."""
    whole = [call for call in calls if "slow or sampled" in call and "tests/sharded" in call]
    return [call for call in whole if call.startswith("make pytest ") and call.endswith("XLA_FLAGS=")]
