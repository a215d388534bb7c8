"""Two processes of two ranks each: two levels give the bits of flat, forward and back, with parts of any length.

Where one rank gets more rows than it has room for, both processes end with an error.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from tests.moe.mixture import case, dense, program, sent_rows

TWO_LEVELS = ("pxn", "multileader")


def main() -> None:
    """Raises AssertionError where they differ."""
    mesh = turns.mesh("e")
    # Wide enough that the parts of a message take several tiles, some of them one and some many.
    one = case(tokens=32, width=6000)
    sharding = NamedSharding(mesh, P("e"))
    operands = [jax.make_array_from_callback(v.shape, sharding, v.__getitem__) for v in one]
    found = {}
    for algorithm in ("direct", *TWO_LEVELS):
        f = program(mesh, rows=32, algorithm=algorithm)

        def both(x, ids, weights, scale, f=f):
            y, back = jax.vjp(lambda x: f(x, ids, weights, scale)[0], x)
            return y, back(jnp.cos(y))[0]

        y, back = jax.jit(both)(*operands)
        found[algorithm] = [np.asarray(shard.data) for leaf in (y, back) for shard in leaf.addressable_shards]
    for algorithm in TWO_LEVELS:
        for got, want in zip(found[algorithm], found["direct"], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=algorithm)
    expected = dense(one, None)(one.x, one.weights, one.scale)
    for shard in y.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-6, atol=1e-5)
    ran = {plan.algorithm for plan in jaxring.plans() if plan.collective == "ragged_all_to_all"}
    assert ran == {"direct", *TWO_LEVELS}, ran
    arriving = sorted(sum(map(len, part)) for part in np.array_split(np.array(sent_rows(one, None), object), 4))
    assert arriving[-2] < arriving[-1]
    short = jax.jit(program(mesh, rows=arriving[-1] - 1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="reaches past the output's end"):
        jax.block_until_ready(short(*operands))
    print("raised in process", jax.process_index(), flush=True)


if __name__ == "__main__":
    main()
