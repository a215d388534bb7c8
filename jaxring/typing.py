"""Types of arguments that several functions share, for annotations in programs of one's own.

from jaxring.typing import Op

def reduced(x: jax.Array, op: Op) -> jax.Array:
    return jaxring.all_reduce(x, "data", op)
"""

from __future__ import annotations

from typing import Literal

__all__ = ["CompressedFormat", "Op", "Protocol"]

Op = Literal["sum", "prod", "min", "max", "mean", "and", "or", "xor"]
"""The operation of a reduction. "mean" is for floats and complex numbers, "min" and "max" for all but complex numbers,
"and", "or" and "xor" for bool and integers."""

Protocol = Literal["memory", "simple", "ll", "ll128"]
"""How messages travel. "ll128" is for ranks on GPUs."""

CompressedFormat = Literal["int8", "fp8_e4m3", "bf16", "int4"]
"""What a compressed collective sends for float32, bfloat16 and float16."""
