"""`jaxring.explain(compiled)`: every collective of a program, with where it comes from and what it will take."""

from __future__ import annotations

import importlib
import pathlib
import re
import types

import jax
import numpy as np
import pytest
from jax import lax

import jaxring
from jaxring.dropin import explaining
from jaxring.errors import JoinError
from jaxring.world.membership import Membership
from tests.dropin.whole_program.wp_programs import exported, matrix, mesh, over
from tests.stress.stress_jobs import run_job

FLAT = mesh((8,))
GRID = mesh((4, 2))


def test_a_program_with_collectives_of_all_origins():
    groups = [[0, 1], [2, 3, 4, 5, 6, 7]]
    left = exported(over(FLAT, lambda x: lax.psum(x, "x", axis_index_groups=groups)), matrix(FLAT, "x", n=8))
    called = over(FLAT, lambda x: jaxring.all_gather(x, "x"))
    f = jax.jit(lambda x: (left(x), called(x), x.sum(0), (x * 2).sum(0)))
    with jaxring.installed(whole_program=True):
        compiled = f.lower(matrix(FLAT, "x", n=8)).compile()
    lines = jaxring.explain(compiled).splitlines()
    here = rf"test_explain.py:{test_a_program_with_collectives_of_all_origins.__code__.co_firstlineno}"
    number = int(here.rpartition(":")[2])
    inserted = [line for line in lines if "inserted by XLA" in line]
    assert len(inserted) == 2
    for line in inserted:
        assert line.startswith("all_reduce(sum) float32[8] 32 B in 1 group(s) of 8 over 8 of 8 devices at ")
        assert f"test_explain.py:{number + 4} (jit(<lambda>)/reduce_sum)" in line
        assert re.search(
            r"; direct, protocol memory, 1 channel\(s\): .*; predicted [0-9.e+]+ us, limited by memory, ", line
        )
    (own,) = [line for line in lines if "called by the program" in line]
    assert own.startswith("all_gather float32[1,8] 32 B in 1 group(s) of 8 over 'x' at test_explain.py:")
    (kept,) = [line for line in lines if line.endswith("XLA's own collective")]
    assert kept.startswith("all-reduce float32[1,8] at ")
    assert len(lines) == 4


def test_without_install_all_are_xlas():
    x = matrix(GRID, "x", "y")
    lines = jaxring.explain(jax.jit(lambda x: x.sum(0)).lower(x).compile()).splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("XLA's own collective")


def test_a_program_without_collectives():
    compiled = jax.jit(lambda x: x + 1).lower(np.float32(1)).compile()
    assert jaxring.explain(compiled) == "jaxring: there is no collective in this program."


def test_a_call_with_an_epilogue_is_named_with_it():
    after = jaxring.epilogues.scale(2).then(jaxring.epilogues.cast("bfloat16"))
    call = over(FLAT, lambda x: jaxring.all_reduce(x, "x", epilogue=after))
    (line,) = jaxring.explain(jax.jit(call).lower(matrix(FLAT, "x", n=8)).compile()).splitlines()
    assert line.startswith("all_reduce(sum) with epilogue scale, cast to bfloat16, of float32[")


@pytest.mark.multiprocess
def test_the_choice_is_that_of_the_job_s_hosts(tmp_path):
    outputs = run_job(tmp_path, [str(pathlib.Path(__file__).parent / "wp_explained.py")], 2, 2)
    assert all(out.startswith("right") for out in outputs)


@pytest.mark.parametrize(
    ("members", "name", "said"),
    [
        ((0, 1), "all_reduce", "; as on one host: the store is gone"),
        ((0, 1), "all_gather", "cannot do without rank 4 (process 2), rank 5 (process 2), rank 6 (process 3)"),
        ((0,), "all_reduce", " channel(s): "),
        ((4,), "all_reduce", "none of its processes is left"),
    ],
)
def test_lost_processes_and_a_lost_store_are_no_error(monkeypatch, members, name, said):
    """As after jaxring.shrink() in a job of four processes of two devices each, which program stays valid."""

    def world_of(processes):
        assert set(processes) == set(members)
        raise JoinError("the store is gone")

    job = types.SimpleNamespace(membership=lambda: Membership(1, 5, members), world_of=world_of)
    monkeypatch.setattr(explaining, "job", lambda: job)
    monkeypatch.setattr(explaining, "device_owners", lambda _: {d.id: i // 2 for i, d in enumerate(jax.devices())})
    program = over(FLAT, lambda x: getattr(jaxring, name)(x, "x"))
    compiled = jax.jit(program).lower(matrix(FLAT, "x", n=8)).compile()
    line = jaxring.explain(compiled)
    assert said in line
    assert ("as on one host" in line) == (said.startswith("; as on one host"))


def test_what_is_planned_while_decisions_are_cleared_is_listed_by_the_next_call(monkeypatch):
    kept = importlib.import_module("jaxring.runtime.explain")
    planned = iter(["planned meanwhile"])

    class Lock:
        """Another thread's decision follows the first time that it is given up."""

        def __enter__(self):
            pass

        def __exit__(self, *_):
            kept._decisions.extend(planned)

    monkeypatch.setattr(kept, "_decisions", ["planned before"])
    monkeypatch.setattr(kept, "_notes", {"left to JAX": 2})
    monkeypatch.setattr(kept, "_lock", Lock())
    assert jaxring.explain(clear=True).splitlines()[:2] == ["planned before", "left to JAX (x2)"]
    assert jaxring.explain().splitlines()[0] == "planned meanwhile"
