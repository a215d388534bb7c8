"""The pairs of Python and jax on which `.ci/run` tests are those that the project names elsewhere."""

from __future__ import annotations

import re
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
