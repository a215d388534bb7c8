"""Dtypes and reductions as the engine numbers them (``ffi/reduce/kernels.h``), and which pairs have a meaning."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# Names as JAX and ml_dtypes spell them, in the order of the engine's DType.
DTYPES: tuple[str, ...] = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
DTYPE_CODES: dict[str, int] = {name: code for code, name in enumerate(DTYPES)}

# mean is the sum, which the final step divides by the number of ranks.
REDUCE_OPS: dict[str, int] = {"sum": 0, "prod": 1, "min": 2, "max": 3, "and": 4, "or": 5, "xor": 6, "mean": 0}

_SIZES = (1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 2, 2, 4, 8, 8, 16)
# These accumulate in float32 and are rounded once.
_WIDENED = frozenset({"float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"})


def dtype_code(dtype: object) -> int:
    """The engine's number of a dtype given by name, as a NumPy dtype, or as anything with a ``name``."""
    name = str(getattr(dtype, "name", dtype))
    if name not in DTYPE_CODES:
        raise TypeError(f"jaxring has no collectives for dtype {name}; convert to one of {', '.join(DTYPES)}")
    return DTYPE_CODES[name]


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy dtype of a name of `DTYPES`; bfloat16 and float8 come from ml_dtypes, which JAX brings along."""
    return np.dtype(getattr(ml_dtypes, name, name))


def element_bytes(dtype: object) -> int:
    """Bytes of an element in a buffer."""
    return _SIZES[dtype_code(dtype)]


def accumulator_bytes(dtype: object) -> int:
    """Bytes of an element of a partial result: 4 (float32) for float8, float16 and bfloat16, else as in the buffer."""
    code = dtype_code(dtype)
    return 4 if DTYPES[code] in _WIDENED else _SIZES[code]


def check(op: str, dtype: object) -> None:
    """Raise TypeError, with what to do instead, where ``op`` has no meaning for ``dtype``; ValueError for no op at all.

    sum of bool is refused here too: JAX's caller converts to int32 first, since the sum of truth values is a count.
    """
    if op not in REDUCE_OPS:
        raise ValueError(f"there is no reduction {op!r}; use one of {', '.join(sorted(REDUCE_OPS))}")
    name = DTYPES[dtype_code(dtype)]
    is_float = name.startswith(("float", "bfloat"))
    is_complex = name.startswith("complex")
    if op == "mean" and not (is_float or is_complex):
        raise TypeError(f"op='mean' needs a float or complex dtype, not {name}; convert first, for example to float32")
    if op in ("and", "or", "xor") and (is_float or is_complex):
        raise TypeError(f"op={op!r} needs bool or an integer dtype, not {name}; compare or view the data as bits first")
    if op in ("min", "max") and is_complex:
        raise TypeError(f"op={op!r} has no order for {name}; reduce the absolute value, or real and imaginary parts")
    if name == "bool" and op == "sum":
        raise TypeError("op='sum' of bool is a count: convert to int32 first, or use op='or'")
    if name == "bool" and op == "prod":
        raise TypeError("op='prod' of bool: use op='and'")
