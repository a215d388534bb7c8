"""Values that a call cannot take fail while the program is traced, with a sentence that says what to do."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxring
from jaxring.plan import dtypes
from tests.collectives.cases.coll_oracle import OPS, served
from tests.collectives.refused.traced import CALLS, REDUCING, SUM, N, trace


def test_the_good_calls_are_good():
    for call in CALLS.values():
        trace(call)


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_ops_without_a_meaning_for_a_dtype(name, dtype):
    for op in OPS:
        if served(op, dtype):
            out = trace(lambda v, op=op: CALLS[name](v, op=op), np.zeros((N, N, 3), dtype))
            assert out.dtype == (np.int32 if (op, dtype) == ("sum", "bool") else np.dtype(dtype))
        else:
            with pytest.raises(TypeError, match=rf"jaxring\.{name}: op='{op}'.*{dtype}.*(convert|use|reduce|compare)"):
                trace(lambda v, op=op: CALLS[name](v, op=op), np.zeros((N, N, 3), dtype))


def test_mean_of_integers_says_what_to_do():
    with pytest.raises(TypeError, match="op='mean' needs a float or complex dtype, not int32; convert first"):
        trace(lambda v: jaxring.all_reduce(v, "x", "mean"), np.zeros((N, 3), np.int32))


# What only moves integers of 4 bits and keys takes them: tests/collectives has it where they arrive.
NARROW_TOO = ("all_gather", "all_to_all", "permute", "broadcast", "gather", "scatter")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in CALLS
        for dtype in ("int4", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "uint4")
        if name != "barrier" and (name not in NARROW_TOO or "int4" not in dtype)
    ],
)
def test_dtypes_that_are_not_served(name, dtype):
    with pytest.raises(
        TypeError, match=rf"jaxring\.{name}: .*no collectives for dtype {dtype}; convert to one of bool"
    ):
        trace(lambda v: CALLS[name](v.astype(dtype)))


def test_random_keys_are_no_numbers():
    with pytest.raises(TypeError, match=r"jaxring\.all_reduce: .*dtype key"):
        trace(lambda v: jax.random.key_data(jaxring.all_reduce(jax.random.key(0), "x")))


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all", "scatter"])
def test_wrong_split_size(name):
    short = np.zeros((N, 6, 3), np.float32)
    with pytest.raises(
        ValueError, match=rf"jaxring\.{name}: .*\(6, 3\).*one entry for each of the 4 ranks.*tiled=True"
    ):
        trace(CALLS[name], short)
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: .*6 entries, which 4 ranks.*pad it to a multiple of 4"):
        trace(functools.partial(CALLS[name], tiled=True), short)


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("bad", [-5, 3, 7])
def test_no_such_dimension(bad, tiled):
    joined = bad + (bad > 0)  # an untiled result has one dimension more than the operand
    calls = [
        (f"all_gather: axis={joined}", lambda v: jaxring.all_gather(v, "x", axis=joined, tiled=tiled)),
        (f"gather: axis={joined}", lambda v: jaxring.gather(v, "x", axis=joined, tiled=tiled)),
        (f"scatter: axis={bad}", lambda v: jaxring.scatter(v, "x", axis=bad, tiled=tiled)),
        (
            f"reduce_scatter: scatter_dimension={bad}",
            lambda v: jaxring.reduce_scatter(v, "x", scatter_dimension=bad, tiled=tiled),
        ),
        (f"all_to_all: split_axis={bad}", lambda v: jaxring.all_to_all(v, "x", bad, 0, tiled=tiled)),
        (f"all_to_all: concat_axis={bad}", lambda v: jaxring.all_to_all(v, "x", 0, bad, tiled=tiled)),
    ]
    for said, call in calls:
        with pytest.raises(ValueError, match=rf"jaxring\.{said} is no dimension of a value with"):
            trace(call)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"])
def test_scalars_have_no_dimension_to_split_or_join(name):
    options = {"tiled": True}
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: .*no dimension of a value with 0 dimensions"):
        trace(lambda v: CALLS[name](v[0, 0], **options))


def ragged(v, *, output=None, sizes=None, axis="x"):
    sizes = [jnp.zeros(N, jnp.int32)] * 4 if sizes is None else sizes
    return jaxring.ragged_all_to_all(v, v if output is None else output, *sizes, axis_name=axis)


def test_bad_ragged_arguments():
    good = [jnp.zeros(N, jnp.int32)] * 4
    with pytest.raises(ValueError, match=r"operand float32.*output bfloat16.* must agree"):
        trace(lambda v: ragged(v, output=v.astype(jnp.bfloat16)))
    with pytest.raises(ValueError, match=r"must agree in dtype and in all dimensions but the first"):
        trace(lambda v: ragged(v, output=v[:, :2]))
    with pytest.raises(ValueError, match="must agree"):
        trace(lambda v: ragged(v[0, 0]))
    for at, name in enumerate(("input_offsets", "send_sizes", "output_offsets", "recv_sizes")):
        for bad in (jnp.zeros(N + 1, jnp.int32), jnp.zeros(N, jnp.float32), jnp.zeros((N, 1), jnp.int32)):
            sizes = [*good[:at], bad, *good[at + 1 :]]
            with pytest.raises(ValueError, match=f"{name} must be an integer vector with an entry for each of the 4"):
                trace(lambda v, sizes=sizes: ragged(v, sizes=sizes))


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("barrier", "recv")])
def test_leaves_that_are_no_arrays(name):
    takes_one = name in ("send", "ragged_all_to_all")
    for bad, text in (("data", "'data'"), (jax.ShapeDtypeStruct((4, 3), "float32"), "ShapeDtypeStruct")):
        with pytest.raises(TypeError, match=rf"jaxring\.{name}: {text}.* cannot be made an array.*pytrees of these"):
            trace(lambda v, bad=bad: CALLS[name](bad if takes_one else {"a": v, "b": bad}))
    with pytest.raises(TypeError, match=r"jaxring\.pcast: 'data' cannot be made an array"):
        trace(lambda _: jaxring.pcast(["data"], "x"))


def test_recv_of_what_has_no_type():
    with pytest.raises(TypeError, match=r"jaxring\.recv: like must be an array or a jax\.ShapeDtypeStruct, not 3\."):
        trace(lambda _: jaxring.recv(3, "x", [(0, 1)])[0])


def test_whole_arrays():
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    with pytest.raises(TypeError, match=r"jaxring\.sharded\.all_reduce: the mesh must be a jax\.sharding\.Mesh.*'x'"):
        jaxring.sharded.all_reduce(SUM, "x", mesh)
    with pytest.raises(TypeError, match=r"jaxring\.sharded\.all_reduce: the axis must be the name.*float32\[4, 8\]"):
        jaxring.sharded.all_reduce(SUM, mesh, SUM)
    with pytest.raises(TypeError, match=r"jaxring\.sharded\.all_gather: spec must be a jax\.sharding\.PartitionSpec"):
        jaxring.sharded.all_gather(SUM, mesh, "x", spec="x")
    with pytest.raises(TypeError, match=r"jaxring\.sharded\.broadcast: 'x' cannot be made an array"):
        jaxring.sharded.broadcast("x", mesh, "x")


def test_a_bad_call_leaves_the_good_ones_alone():
    with pytest.raises(ValueError, match="unknown op"):
        trace(lambda v: jaxring.all_reduce(v, "x", "add"), SUM)
    assert trace(lambda v: jaxring.all_reduce(v, "x"), SUM).shape == SUM.shape
