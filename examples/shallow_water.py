"""Solve the shallow-water equations on a periodic domain that is divided in both directions, with halo exchange.

    JAX_NUM_CPU_DEVICES=4 python examples/shallow_water.py
    jaxring run -n 2 --devices-per-process 2 examples/shallow_water.py

A hump of water collapses and sends out waves. The state is the depth h and the momenta hu and hv; the scheme is
Lax-Friedrichs, which needs the four neighbours of each cell. The final state is compared with that of one device, and
no water may be lost.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

CELLS, STEPS = 64, 200
GRAVITY, SPACING, TIME_STEP = 9.81, 1.0, 0.1  # m/s², m, s: waves of 4 m/s cross 0.4 of a cell in a step


def hump():
    """``[3, CELLS, CELLS]``: h, hu, hv. Water of 1 m at rest, and half a metre more off the middle."""
    y, x = np.mgrid[:CELLS, :CELLS] / CELLS
    h = 1 + 0.5 * np.exp(-100 * ((x - 0.4) ** 2 + (y - 0.3) ** 2))
    return np.stack([h, 0 * h, 0 * h]).astype(np.float32)


def fluxes(state):
    """What flows in the directions of x and of y."""
    h, hu, hv = state
    pressure = GRAVITY * h**2 / 2
    return jnp.stack([hu, hu * hu / h + pressure, hu * hv / h]), jnp.stack([hv, hv * hu / h, hv * hv / h + pressure])


def advance(with_halo, state):
    padded = with_halo(state)
    along_x, along_y = fluxes(padded)
    west, east = (slice(None), slice(1, -1), slice(None, -2)), (slice(None), slice(1, -1), slice(2, None))
    south, north = (slice(None), slice(None, -2), slice(1, -1)), (slice(None), slice(2, None), slice(1, -1))
    mean = (padded[west] + padded[east] + padded[south] + padded[north]) / 4
    change = along_x[east] - along_x[west] + along_y[north] - along_y[south]
    return mean - TIME_STEP / (2 * SPACING) * change


def exchange_halo(state):
    """This device's cells, and around them a row or a column of each neighbour's."""
    for dimension, axis in ((1, "y"), (2, "x")):
        size = jax.lax.axis_size(axis)
        forward = [(i, (i + 1) % size) for i in range(size)]
        backward = [(target, source) for source, target in forward]
        first = jax.lax.slice_in_dim(state, 0, 1, axis=dimension)
        last = jax.lax.slice_in_dim(state, -1, None, axis=dimension)
        before = jaxring.permute(last, axis, forward)
        after = jaxring.permute(first, axis, backward)
        # The columns that go next have the rows' halo at their ends, so that the corners come along.
        state = jnp.concatenate([before, state, after], axis=dimension)
    return state


def wrap(state):
    """The same on one device: the domain is its own neighbour."""
    return jnp.pad(state, ((0, 0), (1, 1), (1, 1)), mode="wrap")


def solve(with_halo, state):
    return jax.lax.fori_loop(0, STEPS, lambda _, state: advance(with_halo, state), state)


def divided(state):
    state = solve(exchange_halo, state)
    return state, jaxring.all_reduce(jnp.sum(state[0]), ("y", "x"))


def main():
    columns = 2 if jax.device_count() % 2 == 0 else 1
    mesh = Mesh(np.array(jax.devices()).reshape(-1, columns), ("y", "x"))
    cut = P(None, "y", "x")
    state = hump()
    result, water = jax.jit(jax.shard_map(divided, mesh=mesh, in_specs=cut, out_specs=(cut, P())))(state)
    expected = jax.jit(partial(solve, wrap))(state)

    for shard in result.addressable_shards:  # those of this process
        np.testing.assert_allclose(shard.data, expected[shard.index], atol=1e-5)
    np.testing.assert_allclose(water, state[0].sum(), rtol=1e-5)
    assert np.ptp(expected[0]) > 0.01, "the water has come to rest, and the comparison means little"
    if jax.process_index() == 0:
        rows = mesh.shape["y"]
        print(f"{CELLS} x {CELLS} cells on {rows} x {columns} devices, {STEPS} steps: {float(water):.2f} m³ of water")
        print("the state is that of one device")


if __name__ == "__main__":
    main()
