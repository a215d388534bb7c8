"""Dtypes and reductions as the engine numbers them (``ffi/reduce/dtypes.h``), and which pairs have a meaning."""

from __future__ import annotations

import dataclasses
import enum

import ml_dtypes
import numpy as np


class Family(enum.Enum):
    """What the values of a dtype are, which decides the reductions that have a meaning."""

    BOOL = enum.auto()
    INTEGER = enum.auto()
    FLOAT = enum.auto()
    COMPLEX = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dtype:
    """One dtype.

    ``name``: as JAX and ml_dtypes spell it. ``bytes``: of an element in a buffer. ``accumulator_bytes``: of an element
    of a partial result. ``on_gpus``: whether the CUDA engine's kernels reduce it.
    """

    name: str
    family: Family
    bytes: int
    accumulator_bytes: int
    on_gpus: bool = True


def _plain(name: str, family: Family, size: int) -> Dtype:
    return Dtype(name=name, family=family, bytes=size, accumulator_bytes=size)


def _widened(name: str, size: int) -> Dtype:
    """Accumulates in float32 and is rounded once."""
    return Dtype(name=name, family=Family.FLOAT, bytes=size, accumulator_bytes=4)


# In the order of the engine's DType, whose numbers are the places here.
_RECORDS = (
    _plain("bool", Family.BOOL, 1),
    _plain("int8", Family.INTEGER, 1),
    _plain("int16", Family.INTEGER, 2),
    _plain("int32", Family.INTEGER, 4),
    _plain("int64", Family.INTEGER, 8),
    _plain("uint8", Family.INTEGER, 1),
    _plain("uint16", Family.INTEGER, 2),
    _plain("uint32", Family.INTEGER, 4),
    _plain("uint64", Family.INTEGER, 8),
    _widened("float8_e4m3fn", 1),
    _widened("float8_e5m2", 1),
    _widened("float16", 2),
    _widened("bfloat16", 2),
    _plain("float32", Family.FLOAT, 4),
    _plain("float64", Family.FLOAT, 8),
    _plain("complex64", Family.COMPLEX, 8),
    _plain("complex128", Family.COMPLEX, 16),
)
DTYPES: dict[str, Dtype] = {each.name: each for each in _RECORDS}
DTYPE_CODES: dict[str, int] = {name: code for code, name in enumerate(DTYPES)}

# mean is the sum, which the final step divides by the number of ranks.
REDUCE_OPS: dict[str, int] = {"sum": 0, "prod": 1, "min": 2, "max": 3, "and": 4, "or": 5, "xor": 6, "mean": 0}


def find(dtype: object) -> Dtype:
    """The record of a dtype given by name, as a NumPy dtype, or as anything with a ``name``. TypeError for others."""
    name = str(getattr(dtype, "name", dtype))
    if name not in DTYPES:
        raise TypeError(f"jaxring has no collectives for dtype {name}; convert to one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_code(dtype: object) -> int:
    """The engine's number of a dtype."""
    return DTYPE_CODES[find(dtype).name]


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy dtype of a name of `DTYPES`; bfloat16 and float8 come from ml_dtypes, which JAX brings along."""
    return np.dtype(getattr(ml_dtypes, name, name))


def element_bytes(dtype: object) -> int:
    """Bytes of an element in a buffer."""
    return find(dtype).bytes


def accumulator_bytes(dtype: object) -> int:
    """Bytes of an element of a partial result: 4 (float32) for float8, float16 and bfloat16, else as in the buffer."""
    return find(dtype).accumulator_bytes


def check(op: str, dtype: object) -> None:
    """Raise TypeError, with what to do instead, where ``op`` has no meaning for ``dtype``; ValueError for no op at all.

    sum of bool is refused here too: JAX's caller converts to int32 first, since the sum of truth values is a count.
    """
    if op not in REDUCE_OPS:
        raise ValueError(f"there is no reduction {op!r}; use one of {', '.join(sorted(REDUCE_OPS))}")
    record = find(dtype)
    name, inexact = record.name, record.family in (Family.FLOAT, Family.COMPLEX)
    if op == "mean" and not inexact:
        raise TypeError(f"op='mean' needs a float or complex dtype, not {name}; convert first, for example to float32")
    if op in ("and", "or", "xor") and inexact:
        raise TypeError(f"op={op!r} needs bool or an integer dtype, not {name}; compare or view the data as bits first")
    if op in ("min", "max") and record.family is Family.COMPLEX:
        raise TypeError(f"op={op!r} has no order for {name}; reduce the absolute value, or real and imaginary parts")
    if record.family is Family.BOOL and op == "sum":
        raise TypeError("op='sum' of bool is a count: convert to int32 first, or use op='or'")
    if record.family is Family.BOOL and op == "prod":
        raise TypeError("op='prod' of bool: use op='and'")
