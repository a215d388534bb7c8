"""An algorithm is one file: a tree to which one was added finds, prices, verifies and chooses it, or refuses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxring.plan.algorithms import ALGORITHMS

PLAN = Path(__file__).parents[2] / "jaxring" / "plan"
# Every rank but the first sends its vector to the first, which folds them in their order and sends the result back.
STAR = """
from jaxring.plan import cost
from jaxring.plan.algorithms.common import fold, inp, messages, out, receive
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Step


def build(spec):
    def lanes(rank):
        others = range(1, spec.nranks)
        if rank:
            return [[Step(Kind.MOVE, inp(0), send=(Peer(0),)), receive(0, 0)]]
        return [fold(0, 0, [(Peer(r), False) for r in range(spec.nranks)], out(0), messages(others), final=True)]
    return Schedule(spec, 1, 1, 0, lanes)


def shape(call):
    return cost.Shape(0, 0, 0, 0)


ALGORITHMS = (Algorithm(name="star", summary="by way of rank 0", collectives=frozenset({"all_reduce"}), build=build,
                        partials=False, preference=20%s),)
"""
USE = """
import sys

# The finder of an editable install would give the package that is under test everywhere else.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.schedule import Spec
from jaxring.plan.tuner import choose
from jaxring.plan.verify import verify

verify(build(Spec("all_reduce", 5, "star")))
choice = choose("all_reduce", range(5), range(5), 1 << 20, "float32")
print(choice.algorithm, choice.candidates[0][1], len(ALGORITHMS))
"""


def use(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Runs USE in a copy of the planner with one more module, which needs nothing else of the package."""
    package = folder / "jaxring"
    shutil.copytree(PLAN, package / "plan", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    (package / "plan" / "algorithms" / "star.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", USE], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_one_file_adds_an_algorithm(tmp_path: Path) -> None:
    ended = use(tmp_path, STAR % ", shape=shape")
    assert ended.returncode == 0, ended.stderr
    name, price, count = ended.stdout.split()
    # Nothing between domains costs what a step in memory costs.
    assert (name, float(price), int(count)) == ("star", 2.0, len(ALGORITHMS) + 1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("", "missing 1 required keyword-only argument: 'shape'"),
        (", shape=None", "algorithm 'star' has no price: give shape="),
        (", shape=shape, unasked=frozenset({'TPU'})", "engines are some of CPU, GPU"),
    ],
)
def test_an_algorithm_that_lacks_a_fact_is_refused_at_import(tmp_path: Path, fields: str, why: str) -> None:
    ended = use(tmp_path, STAR % fields)
    assert ended.returncode == 1
    assert why in ended.stderr
