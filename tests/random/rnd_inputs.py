"""Data for random programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401 - gives NumPy the small floats by their names
import numpy as np

from tests.random.rnd_program import is_float

if TYPE_CHECKING:
    from tests.random.rnd_program import Program


def inputs(program: Program) -> list[np.ndarray]:
    """Data for it, ``[shards, *shape]`` each, of its dtype."""
    rng = np.random.default_rng(program.seed)
    found = []
    for t in program.inputs:
        shards = math.prod(program.sizes[name] for name in t.vary)
        shape = (*((2,) if program.outer == "vmap" else ()), shards, *t.shape)
        dtype = np.dtype(t.dtype)
        if t.dtype == "bool":
            x = rng.integers(0, 2, shape).astype(bool)
        elif not is_float(t.dtype):
            info = np.iinfo(dtype)
            x = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            x = np.where(rng.random(shape) < 0.5, x, rng.integers(0, 9, shape).astype(dtype))
        else:
            x = rng.uniform(0.2, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
            if t.dtype.startswith("complex"):
                x = (x + 1j * rng.uniform(-1, 1, shape)) / 2
            x = x.astype(dtype)
            if t.bound is None:
                special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]).astype(dtype)
                x = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), x)
        found.append(x)
    return found
