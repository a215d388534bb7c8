"""The error bounds that docs/concepts/compression.md states, and data that is hard to quantise."""

from __future__ import annotations

import numpy as np

BLOCK = 128
NAMES = ("int8", "int4", "fp8_e4m3", "bf16")
# The largest difference of neighbouring values, relative to the block's largest magnitude, where it is all finite and
# where it is not.
STEPS = {"int8": (1 / 127, 1 / 126), "int4": (1 / 7, 1 / 6), "fp8_e4m3": (1 / 14, 1 / 13)}
# A scale has 16 significant bits, and is a multiple of the least subnormal number.
SCALE = 1 + 2.0**-8
LEAST = 2.0**-149
FLOORS = {"int8": 2 * LEAST, "int4": 2 * LEAST, "fp8_e4m3": 64 * LEAST}
BF16_LEAST = 2.0**-133


def largest(x: np.ndarray) -> np.ndarray:
    """For each element of a row (..., n), the largest finite magnitude of its block; float64."""
    n = x.shape[-1]
    magnitude = np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0)
    padded = np.pad(magnitude, [(0, 0)] * (x.ndim - 1) + [(0, -n % BLOCK)])
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK).max(axis=-1, keepdims=True)
    return np.broadcast_to(blocks, (*blocks.shape[:-1], BLOCK)).reshape(*x.shape[:-1], -1)[..., :n]


def once(name: str, x: np.ndarray, stochastic: bool, slack: np.ndarray | float = 0.0) -> np.ndarray:
    """How far a value may be off after one quantisation of rows (..., n) that are known to within ``slack``."""
    ways = 1.0 if stochastic else 0.5
    if name == "bf16":
        return ways * (2.0**-7 * (np.abs(x.astype(np.float64)) + slack) + BF16_LEAST)
    step = STEPS[name][int(not np.all(np.isfinite(x)))]
    if np.any(slack):
        slack = largest(np.broadcast_to(slack, x.shape))
    return ways * step * SCALE * (largest(x) + slack) + FLOORS[name]


def data(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of n float32 that are hard in different ways."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    found = {
        "normal": normal,
        "heavy": rng.standard_cauchy(n) ** 3,
        "sparse": np.where(rng.random(n) < 0.02, normal, 0),
        "constant": np.full(n, -0.3),
        "zeros": np.zeros(n),
        "largest": np.where(rng.random(n) < 0.5, 1, -1) * np.finfo(np.float32).max * rng.choice([1, 0.7, 1e-3], n),
        "mixed": normal * 10.0 ** rng.integers(-30, 30, n),
        "subnormal": normal * 1e-40,
        "least": rng.integers(-300, 300, n) * LEAST,
    }
    return {name: np.clip(x, -3.4028234e38, 3.4028234e38).astype(np.float32) for name, x in found.items()}


def with_others(x: np.ndarray, seed: int = 1) -> np.ndarray:
    """``x`` with NaN and infinity at a few places."""
    rng = np.random.default_rng(seed)
    y = x.copy()
    for value in (np.nan, np.inf, -np.inf):
        y[..., rng.integers(0, x.shape[-1], 2)] = value
    return y
