"""What processes compare of a call with an epilogue, and steps of pytrees without a leaf."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import epilogues
from jaxring.plan.epilogue import EpilogueSpec
from jaxring.runtime.call import CallSpec


def call(epilogue):
    return CallSpec(
        collective="reduce_scatter",
        op="sum",
        dtype="bfloat16",
        shape=(8,),
        axes="'x'",
        timeout=1.0,
        site="train.py:1",
        call=0,
        devices=None,
        program="",
        block=4,
        epilogue=epilogue,
    )


def test_calls_that_differ_in_an_epilogue_differ_in_their_words():
    every = [
        None,
        EpilogueSpec(functions=("cast",), result="bfloat16"),
        EpilogueSpec(functions=("cast",), result="float32"),
        EpilogueSpec(functions=("scale", "cast"), result="float32"),
        EpilogueSpec(functions=("sgd",), result="float32", further=("float32",)),
        EpilogueSpec(functions=("sgd",), result="float32", further=("bfloat16",)),
    ]
    words = [tuple(call(each).options()) for each in every]
    assert len(set(words)) == len(every)
    assert words[-1] == ("epilogue sgd in float32 with operands of bfloat16",)


@pytest.mark.parametrize("empty", [{}, {"a": []}])
def test_a_step_of_no_leaves_has_all_its_results(empty):
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def step(v):
        adam = epilogues.adam(empty, empty, empty, 1, 1e-3)
        new = jaxring.reduce_scatter(empty, "x", epilogue=adam)
        assert new == (empty, empty, empty)
        momentum = epilogues.sgd(empty, 0.1, momentum=0.9, trace=empty)
        assert jaxring.reduce_scatter(empty, "x", epilogue=momentum) == (empty, empty)
        assert jaxring.reduce_scatter(empty, "x", epilogue=epilogues.sgd(empty, 0.1)) == empty
        return v

    jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(jnp.zeros(2))
