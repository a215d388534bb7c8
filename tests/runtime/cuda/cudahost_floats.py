"""What switches have no instruction for, or none that keeps the promise: NaN, zeros, means whose sums overflow."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jaxring


def floats(over, ranks, **options):
    """``over``: runs a function on each rank's row."""

    def check(op, x, want):
        got = over(lambda v: jaxring.all_reduce(v, "d", op, **options), x)
        want = want.astype(np.float32)
        for rows in got.values():
            for row in rows.astype(np.float32):
                np.testing.assert_array_equal(row, want)
                numbers = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(row[numbers]), np.signbit(want[numbers]))

    rows = np.arange(ranks * 96, dtype=np.float32).reshape(ranks, 96) % 17
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        large = (rows * 3500).astype(dtype)
        mean = large.astype(np.float32).sum(0) / np.float32(ranks)
        assert mean.max() * ranks > np.finfo(np.float16).max
        check("mean", large, mean.astype(dtype))
        signed = (rows - 8).astype(dtype)
        signed[0, :5] = np.nan, -np.inf, np.inf, -0.0, 0.0
        signed[1:, 3:5] = 0.0, -0.0
        for op, fold in (("min", np.min), ("max", np.max)):
            want = fold(signed.astype(np.float32), axis=0)
            want[3:5] = -0.0 if op == "min" else 0.0
            check(op, signed, want)
