"""What made a call's operands is hashed: of any attribute, without ending the process, and no two constants alike."""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

FLOATS = ("bf16", "f16", "f32", "f64", "f8E4M3FN", "f8E5M2", "f8E4M3B11FNUZ", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E8M0FNU")
DTYPES = (
    *("i1", "i2", "i4", "i8", "i16", "i32", "i64", "ui2", "ui4", "ui8", "ui16", "ui32", "ui64"),
    *(*FLOATS, "f4E2M1FN", "complex<f32>", "complex<f64>"),
)


def lowered(f, *args):
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))

    def rank(v):
        return jaxring.all_reduce(f(v), "a")  # one line for all, as the site is a part of the call

    return jax.jit(jax.shard_map(rank, mesh=mesh, in_specs=P("a"), out_specs=P())).lower(*args)


def fingerprint(made, place=None):
    """The hash of what makes the operand of a collective, with a value that ``made`` makes at ``place``."""
    text = lowered(functools.partial(place or straight, made=made), np.ones((2, 3), np.float32)).as_text()
    (found,) = re.findall(r"\\22program\\22:\\22(\w+)\\22", text)
    return found


def emitting(emit):
    """A function that emits, where it is lowered, what ``emit`` makes: a value of float32[]."""
    primitive = Primitive("test_emitting")
    primitive.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype(np.float32)))
    mlir.register_lowering(primitive, lambda _ctx: [emit()], platform="cpu")
    return primitive.bind


def parsed(text):
    """What stands behind a constant, which is made by that text."""

    def emit():
        constant = ir.Operation.parse(f"%0 = stablehlo.constant {text}")
        ir.InsertionPoint.current.insert(constant)
        return elsewhere([constant.operation.results[0]], ["tensor<f32>"])[0]

    return emitting(emit)


def elsewhere(operands, types):
    attributes = {"call_target_name": ir.StringAttr.get("elsewhere")}
    types = [ir.Type.parse(t) for t in types]
    return ir.Operation.create("stablehlo.custom_call", types, operands, attributes).results


def straight(v, made):
    return v + made()


def in_a_function(v, made):
    return jax.jit(lambda u: u + made())(v)


def in_a_loop(v, made):
    return jax.lax.fori_loop(0, 2, lambda _, u: u + made(), v)


def in_a_branch(v, made):
    return jax.lax.cond(v[0, 0] > 0, lambda u: u + made(), lambda u: u, v)


PLACES = (straight, in_a_function, in_a_loop, in_a_branch)


def constant(dtype, size, last):
    """All alike but the last element; which are a splat if that is like them."""
    one, two = ("false", "true") if dtype == "i1" else ("1", "0") if "i" in dtype else ("1.0", "2.0")
    if dtype.startswith("complex"):
        one, two = f"({one}, {one})", f"({one}, {two})"
    return parsed(f"dense<[{', '.join([one] * (size - 1) + [two if last else one])}]> : tensor<{size}x{dtype}>")


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_of_each_dtype_are_told_apart(dtype):
    for size in (3, 1000):  # MLIR prints many elements in another way
        found = [fingerprint(constant(dtype, size, last)) for last in (0, 0, 1)]
        assert found[0] == found[1] != found[2], size


@pytest.mark.parametrize("dtype", ["f32", "complex<f32>"])
@pytest.mark.parametrize("place", PLACES)
def test_constants_are_told_apart_in_functions_loops_and_branches(place, dtype):
    for size in (1, 80, 1000):
        found = [fingerprint(constant(dtype, size, last), place) for last in (0, 0, 1)]
        assert found[0] == found[1] != found[2], size


ATTRIBUTES = {
    "complex": "dense<(2.0, 1.0)> : tensor<3xcomplex<f32>>",
    "complex integers": "dense<(2, 1)> : tensor<complex<i32>>",
    "strings": 'dense<["one", "two"]> : tensor<2x!stablehlo.token>',
    "sparse": "sparse<[[0, 0], [1, 2]], [1.0, 5.0]> : tensor<3x4xf32>",
    "resource": "dense_resource<nothing> : tensor<2xf32>",
    "array": "array<i8: 1, 2>",
    "distinct": "distinct[0]<42 : i32>",
    "map": "affine_map<(d0) -> (d0 + 1)>",
    "type": "tensor<?x!stablehlo.token>",
    "symbol": "@nowhere::@nested",
    "itself": "@main",
    "dialect": "#stablehlo.channel_handle<handle = 1, type = 2>",
    "nested": "{a = [dense<(1.0, 2.0)> : tensor<complex<f64>>, unit], b = loc(unknown)}",
    "bytes": '"\\00\\FF\\22@main dense_resource<"',
    "big": f"dense<[{', '.join(['(1.0, 2.0)'] * 200)}]> : tensor<200xcomplex<f64>>",
}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attributes_of_each_kind(attribute):
    for place in (straight, in_a_loop):
        with_it = parsed(f"{{test.what = {ATTRIBUTES[attribute]}}} dense<1.0> : tensor<f32>")
        without = parsed("dense<1.0> : tensor<f32>")
        found = [fingerprint(made, place) for made in (with_it, with_it, without)]
        assert found[0] == found[1] != found[2]


def test_data_that_is_held_apart_from_its_constant():
    """Two programs name it alike, and the text of their constants is the same."""

    def resource(value):
        def emit():
            data = np.full(200, value, np.float32)
            kind = ir.RankedTensorType.get([200], ir.F32Type.get())
            whole = hlo.constant(ir.DenseResourceElementsAttr.get_from_buffer(memoryview(data), "weights", kind))
            return elsewhere([whole], ["tensor<f32>"])[0]

        return fingerprint(emitting(emit))

    assert resource(1.0) == resource(1.0)
    assert resource(1.0) != resource(2.0)


def test_tokens_and_results_of_other_types_are_told_apart():
    def through(kind, number):
        def emit():
            token = hlo.create_token()
            made = elsewhere([token], [f"tensor<{kind}>", "tensor<f32>"])
            return elsewhere([made[number]], ["tensor<f32>"])[0]

        return fingerprint(emitting(emit))

    found = [through("f16", 0), through("bf16", 0), through("f16", 1)]
    assert len(set(found)) == 3
    assert found == [through("f16", 0), through("bf16", 0), through("f16", 1)]


def test_a_long_program_is_hashed_in_one_pass(monkeypatch):
    """Each operation is printed once, however many results it has and calls stand behind it."""
    from jaxring.tracing.lowering import fingerprint as module

    printed = []
    original = module._text

    def text(operation):
        printed.append((operation.name, original(operation)))
        return printed[-1][1]

    monkeypatch.setattr(module, "_text", text)

    def many(v):
        parts = jax.lax.fori_loop(0, 3, lambda _, vs: [u + 1 for u in vs], [v + i for i in range(20)])
        return jaxring.all_reduce(parts, "a")

    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    jax.jit(jax.shard_map(many, mesh=mesh, in_specs=P("a"), out_specs=P())).lower(np.ones((2, 3), np.float32))
    assert [name for name, _ in printed].count("stablehlo.while") == 1


def test_a_program_with_complex_constants_runs():
    f = jax.jit(
        jax.shard_map(
            lambda v: jaxring.all_reduce(v * (2.0 + 1j), "a"),
            mesh=Mesh(np.array(jax.devices()[:2]), ("a",)),
            in_specs=P("a"),
            out_specs=P(),
        )
    )
    np.testing.assert_array_equal(f(np.ones(4, np.complex64)), np.full(2, 4 + 2j, np.complex64))
