"""A collective is a record, a schedule, a function and its export: a tree with four changed files has one more."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys

from tests import starting

PACKAGE = pathlib.Path(__file__).parents[2] / "jaxring"

# Rank r gets the value of rank n-1-r.
RECORD = """
COLLECTIVES["mirror"] = CALLS["mirror"] = dataclasses.replace(
    COLLECTIVES["permute"], name="mirror", schedules_of="mirror", pairs=False,
    results=lambda given, rank: [Moved(given.ranks - 1 - rank, 0)],
)
"""
SCHEDULE = """
from jaxring.plan import cost
from jaxring.plan.algorithms.common import inp, receive
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Step


def build(spec):
    def lanes(rank):
        other = spec.nranks - 1 - rank
        return [[Step(Kind.MOVE, inp(0), send=(Peer(other),)), receive(other, 0)]]
    return Schedule(spec, 1, 1, 0, lanes)


ALGORITHMS = (Algorithm(name="swap", summary="each pair swaps", collectives=frozenset({"mirror"}), build=build,
                        shape=lambda call: cost.Shape(1, 1, call.nbytes, 0), preference=20),)
"""
FUNCTION = '''
def mirror(x, axis_name, *, algorithm=None, protocol=None, timeout=None):
    """Every rank gets the value of the rank that is as far from the other end of the axis."""
    axes = resolve("mirror", axis_name)
    options = checks.options("mirror", axes, None, algorithm, protocol, timeout, call_site())
    return each("mirror", lambda leaf: bind("mirror", leaf, axes, options, None), x)


__all__ += ["mirror"]
'''
USE = """
import sys

# The finder of an editable install would give the package that is under test everywhere else.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Spec
from jaxring.plan.verify import verify

verify(build(Spec("mirror", 6, "swap")))
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
data = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def sharded(f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))


assert np.array_equal(sharded(lambda x: jaxring.mirror(x, "x"))(data), data[::-1])
batched = sharded(jax.vmap(lambda x: jaxring.mirror(x, "x"), in_axes=1, out_axes=1))
assert np.array_equal(batched(data), data[::-1])
for refused in (
    lambda: jax.grad(lambda x: sharded(lambda y: jaxring.mirror(y, "x"))(x).sum())(data),
    lambda: jax.vmap(lambda x: jaxring.mirror(x, "v"), axis_name="v")(data),
):
    try:
        refused()
    except NotImplementedError as error:
        print(error)
print(jaxring.explain())
"""


def test_four_files_add_a_collective(tmp_path):
    package = tmp_path / "jaxring"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    native = pathlib.Path(importlib.util.find_spec("jaxring._native").origin)
    if not (package / native.name).exists():
        shutil.copy(native, package)

    def add(name: str, text: str) -> None:
        with (package / name).open("a", encoding="utf-8") as file:
            file.write(text)

    add("plan/collectives.py", RECORD)
    add("plan/algorithms/swap.py", SCHEDULE)
    add("_moves.py", FUNCTION)
    add("_public.py", "\nfrom jaxring.collectives import mirror\n__all__ += ['mirror']\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "JAX_NUM_CPU_DEVICES": "4"}
    ended = starting.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    derivative, axis, *chosen = ended.stdout.splitlines()
    assert derivative.startswith("jaxring.mirror cannot be differentiated: it has no rule for that")
    assert axis.startswith("jaxring.mirror: axis 'v' is one of jax.vmap, over which it is not served")
    assert any("mirror" in line and "swap" in line for line in chosen), ended.stdout
