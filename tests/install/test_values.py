"""Values, gradients and batching of `jaxring.lax`, and of `jax.lax` with install, are those of `jax.lax`."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from inst_cases import CASES, operand, program, run

import jaxring
import jaxring.lax

ALL = [(name, vma) for name, case in CASES.items() for vma in (True, False) if case.primitives[not vma]]


@functools.cache
def expected(name, vma):
    """What JAX gives, without jaxring."""
    values, ours, theirs = run(program(jax.lax, CASES[name], vma))
    assert theirs
    assert ours == set()
    return values


def check(f, values):
    got, ours, theirs = run(f)
    assert ours
    assert theirs == set()
    for a, b in zip(values, got, strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize(("name", "vma"), ALL)
def test_installed(name, vma):
    values = expected(name, vma)
    with jaxring.installed():
        check(program(jax.lax, CASES[name], vma), values)


@pytest.mark.parametrize(("name", "vma"), ALL)
def test_lax(name, vma):
    f = program(jaxring.lax, CASES[name], vma)
    assert f"jaxring_{CASES[name].primitives[not vma]}[" in str(jax.make_jaxpr(f)(operand()))
    check(f, expected(name, vma))
