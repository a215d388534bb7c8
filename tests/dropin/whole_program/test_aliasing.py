"""When an all-reduce writes its result over its operand, and when it must not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxring
from tests.dropin.whole_program.wp_programs import matrix, mesh

FLAT = mesh((8,))


def carried(x):
    """A loop's body whose all-reduce goes out of it, while what came in is still read."""

    def body(i, carry):
        total, other = carry
        new = (x * total / 100 + jnp.sin(total)).sum(0)  # made from what came in, then summed over the devices
        return new, other + jnp.cumsum(total * i)

    return jax.lax.fori_loop(0, 5, body, (x[0], jnp.zeros(x.shape[1])))


PROGRAMS = {
    "consumed": (lambda x: jnp.tanh((x * x).sum(0)), 1),
    "combined": (lambda x: (jnp.tanh((x * x).sum(0)), jnp.sin((x + 1).sum(0))), 2),
    "returned": (lambda x: (x * x).sum(0), 0),
    "carried": (carried, 0),
    "of an operand that stands there twice": (
        lambda x: jax.lax.optimization_barrier(x).sum(0) * 0 + jnp.tanh(x.sum(0)),
        0,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_aliases(name):
    program, aliases = PROGRAMS[name]
    x = matrix(FLAT, "x")
    f = jax.jit(program)
    expected = f(x)
    with jaxring.installed(whole_program=True):
        text = f.lower(x).compile().as_text()
        calls = [line for line in text.splitlines() if 'custom_call_target="jaxring_all_reduce"' in line]
        assert calls
        found = sum(
            line.partition("output_to_operand_aliasing={")[2].partition("}, api")[0].count("(") for line in calls
        )
        for _ in range(3):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), f(x), expected)
    assert found == aliases
