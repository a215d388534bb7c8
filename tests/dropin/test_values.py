"""Values, gradients and batching of `jaxring.lax`, and of `jax.lax` with install, are those of `jax.lax`."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring.lax
from jaxring import _compat
from tests.dropin.inst_cases import CASES, chosen, mesh, operand, program, run

OURS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}
XLAS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"}


@functools.cache
def expected(vma):
    """What JAX gives, without jaxring."""
    values, ours, theirs = run(program(jax.lax, vma))
    assert ours == set()
    assert theirs == XLAS
    return values


def check(f, vma):
    got, ours, theirs = run(f)
    assert ours == OURS
    assert theirs == set()
    for name, values in expected(vma).items():
        assert len(values) == (1 + CASES[name].grad) * (1 + (CASES[name].vmap is not None))
        for a, b in zip(values, got[name], strict=True):
            np.testing.assert_array_equal(b, a, err_msg=name)


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.sampled(2)
def test_installed(vma):
    expected(vma)
    with jaxring.installed():
        check(program(jax.lax, vma), vma)


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.sampled(2)
def test_lax(vma):
    check(program(jaxring.lax, vma), vma)


@pytest.mark.parametrize(("name", "vma"), [(name, vma) for vma in (True, False) for name in chosen(vma)])
def test_each_call_binds_the_copy_of_its_primitive(name, vma):
    specs = P(("x", "y"))
    for namespace, prefix in ((jax.lax, ""), (jaxring.lax, "jaxring_")):
        f = jax.shard_map(
            lambda x: CASES[name].call(namespace, x[0]).reshape(1, -1),  # noqa: B023
            mesh=mesh(),
            in_specs=specs,
            out_specs=specs,
            check_vma=vma,
        )
        primitive = CASES[name].primitives[not vma]
        if not vma and "pbroadcast_dynamic" in _compat.collective_primitives():
            primitive = primitive.removesuffix("_invariant")  # jax 0.12 binds the plain one without types
        assert f" {prefix}{primitive}[" in str(jax.make_jaxpr(f)(operand()))
