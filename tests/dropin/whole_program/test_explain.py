"""`jaxring.explain(compiled)`: every collective of a program, with where it comes from and what it will take."""

from __future__ import annotations

import pathlib
import re

import jax
import numpy as np
import pytest
from jax import lax

import jaxring
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
