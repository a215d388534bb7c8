"""A script of plain `jit`, whose process 1 sends itself a signal while the others wait for it.

usage: wp_fails.py SIGNAL sums|moves FOLDER
"""

import os
import pathlib
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

number, program, folder = getattr(signal, sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
n, me = jax.device_count(), jax.process_index()
mesh = jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,))
rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
x = jax.make_array_from_callback((8 * n, 8 * n), rows, lambda index: np.ones((8 * n, 8 * n), np.float32)[index])


@jax.jit
def sums(x):
    return x.max(0), jnp.tanh(2 * x).sum(1)  # one collective: the rows are whole on each device


@jax.jit
def moves(x):
    y = jnp.sin(x)  # all-to-all
    return (jax.lax.with_sharding_constraint(y, columns),)


f = {"sums": sums, "moves": moves}[program]
jax.block_until_ready(f(x))
if me == 1:
    while len(list(folder.glob("launched*"))) < jax.process_count() - 1:
        time.sleep(0.01)
    os.kill(os.getpid(), number)
y = f(x)
(folder / f"launched{me}").touch()
jax.block_until_ready(y)
