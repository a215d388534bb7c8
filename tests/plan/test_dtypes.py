"""Which reductions have a meaning for which dtype, and what the refusals advise."""

from __future__ import annotations

import numpy as np
import pytest

from jaxring.plan import dtypes


def test_every_pair_is_decided() -> None:
    allowed = {op: set() for op in dtypes.REDUCE_OPS}
    for op in dtypes.REDUCE_OPS:
        for name in dtypes.DTYPES:
            try:
                dtypes.check(op, name)
            except TypeError:
                continue
            allowed[op].add(name)
    every = set(dtypes.DTYPES)
    inexact = {name for name in every if "float" in name or "complex" in name}
    assert allowed["sum"] == allowed["prod"] == every - {"bool"}
    assert allowed["mean"] == inexact
    assert allowed["min"] == allowed["max"] == every - {"complex64", "complex128"}
    assert allowed["and"] == allowed["or"] == allowed["xor"] == every - inexact


def test_refusals_say_what_to_do() -> None:
    for op, dtype, advice in [
        ("mean", "int32", "convert first"),
        ("xor", "float32", "needs bool or an integer"),
        ("max", "complex64", "has no order"),
        ("sum", "bool", "convert to int32"),
        ("prod", "bool", "use op='and'"),
        ("sum", "float4_e2m1fn", "convert to one of"),
    ]:
        with pytest.raises(TypeError, match=advice):
            dtypes.check(op, dtype)
    with pytest.raises(ValueError, match="there is no reduction 'median'; use one of and, max"):
        dtypes.check("median", "float32")


def test_sizes() -> None:
    assert dtypes.dtype_code(np.dtype(np.float32)) == dtypes.dtype_code("float32") == 13
    for name in dtypes.DTYPES:
        if name.startswith(("float8", "bfloat")):
            continue
        assert dtypes.element_bytes(name) == np.dtype(name).itemsize
    narrow = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
    assert {name: dtypes.accumulator_bytes(name) for name in narrow} == dict.fromkeys(narrow, 4)
    assert all(dtypes.accumulator_bytes(n) == dtypes.element_bytes(n) for n in dtypes.DTYPES if n not in narrow)
