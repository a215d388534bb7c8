"""DiLoCo's exchange is in flight while the inner step is computed: by the order of events, whatever the times are.

The first group's inner step waits until that group's exchange has begun, and the second group begins its exchange only
when that step has run. So the step runs while the exchange of the first group waits; if one of the two had to wait for
the other, neither would go on before the deadline.
"""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytest.importorskip("optax")  # it comes with the extra "test"

import optax

import jaxring.optax
from jaxring import _native

SIDE = 40
GROUPS = 2


class Events:
    """Holds the second group back, once armed, until the first group's step has run, whose moment it notes."""

    def __init__(self):
        self.armed, self.ran, self.moments, self.in_flight = False, threading.Event(), [], 0

    def hold(self, group):
        if self.armed and group == 1:
            self.ran.wait(20)
        return np.float32(0)

    def step(self, group, update):
        if self.armed and group == 0:
            deadline = time.monotonic() + 10
            while not self.in_flight and time.monotonic() < deadline:
                self.in_flight = _native.counters()["in_flight"]
                time.sleep(0.001)
            self.moments.append(_native.clock())
            self.ran.set()
        return np.asarray(update)


def observed(events):
    """SGD whose steps are noted."""

    def update(updates, state, params=None):
        del params
        shape = jax.ShapeDtypeStruct(updates.shape, updates.dtype)
        return -0.1 * jax.pure_callback(events.step, shape, jax.lax.axis_index("x"), updates), state

    return optax.GradientTransformation(lambda _: (), update)


@pytest.mark.parametrize("compress", [None, "int8"])
def test_the_inner_step_runs_while_a_fragment_travels(compress):
    events = Events()
    transformation = jaxring.optax.diloco("x", observed(events), every=2, compress=compress, timeout=20)
    mesh = Mesh(np.array(jax.devices()[:GROUPS]), ("x",))
    start = np.linspace(-1, 1, SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    specs = jaxring.optax.state_specs(jax.eval_shape(transformation.init, start), "x")

    def train(params, state):
        mine = params[0] + jax.pure_callback(
            events.hold, jax.ShapeDtypeStruct((), jnp.float32), jax.lax.axis_index("x")
        )
        gradient = jnp.sort(jnp.sin(mine @ mine))
        updates, state = transformation.update(gradient, state, mine)
        return optax.apply_updates(mine, updates)[None], state

    shard = {"mesh": mesh, "check_vma": False}
    state = jax.jit(jax.shard_map(transformation.init, in_specs=P(), out_specs=specs, **shard))(start)
    step = jax.jit(jax.shard_map(train, in_specs=(P("x"), specs), out_specs=(P("x"), specs), **shard))
    params = np.stack([start] * GROUPS)
    expected = jax.block_until_ready(step(params, state))
    before = _native.records(0)[-1].number
    events.armed = True
    try:
        found = jax.block_until_ready(step(params, state))
    finally:
        events.ran.set()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    (moment,) = events.moments
    assert events.in_flight == 1
    # Compressed it is two collectives; the second needs the first.
    first = min(_native.records(before), key=lambda record: record.arrived)
    assert moment < first.ended, first.label
