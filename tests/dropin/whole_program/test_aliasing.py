"""When an all-reduce writes its result over its operand, and when it must not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxring
from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.aliasing import Uses
from jaxring.dropin.whole_program.hlo import Computation, Module
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


def instruction(identifier, opcode, *operands, index=0):
    return Message.of((2, opcode), (13, index), (35, identifier), (36, packed(operands)))


DOT, OTHER = instruction(1, "dot"), instruction(2, "dot")
CALL = instruction(3, "all-reduce", 1, 2)
FIRST, SECOND = instruction(4, "get-tuple-element", 3), instruction(5, "get-tuple-element", 3, index=1)


@pytest.mark.parametrize(
    ("instructions", "aliased"),
    [
        ([DOT, OTHER, CALL, FIRST, SECOND, instruction(6, "add", 4, 5)], [True, True]),
        ([DOT, OTHER, CALL, FIRST, SECOND, instruction(6, "tuple", 5), instruction(7, "add", 4)], [True, False]),
        ([DOT, OTHER, CALL, FIRST, SECOND, instruction(6, "add", 4, 5, 1)], [False, True]),
        ([DOT, instruction(3, "all-reduce", 1, 1), FIRST, SECOND, instruction(6, "add", 4, 5)], [False, False]),
        ([DOT, OTHER, CALL, instruction(6, "tuple", 3)], [False, False]),
        ([DOT, OTHER, CALL, FIRST, instruction(6, "dynamic-update-slice", 4)], [False, True]),
        ([instruction(1, "parameter"), instruction(3, "all-reduce", 1), instruction(6, "add", 3)], [False]),
        ([DOT, instruction(3, "all-reduce", 1)], [False]),
    ],
)
def test_who_may_alias(instructions, aliased):
    """By who makes the operands of instruction 3, and who uses its results. The last instruction is the root."""
    root = instructions[-1].number(35)
    data = bytes(Message.of(*((2, each) for each in instructions), (5, 1), (6, root)))
    computation = Computation(data, 1)
    uses = Uses(Module(b""), computation)
    (call,) = [each for each in computation.instructions if each.id == 3]
    assert [uses.may_alias(call, operand) for operand in call.operands] == aliased
