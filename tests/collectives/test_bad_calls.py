"""Bad calls fail while the program is traced, with a sentence that says what to do."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan import dtypes
from jaxring.plan.algorithms import ALGORITHMS, serving
from tests.collectives.cases.coll_oracle import OPS, served

N = 4
X = np.arange(N * N * 3.0, dtype=np.float32).reshape(N, N, 3)
SUM = np.ones((N, 8), np.float32)


def trace(f, x=X, lower=False):
    """Traces ``f`` of a rank's value on 4 ranks of axis x, lowers it if asked to, and runs nothing."""
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    mapped = jax.shard_map(lambda v: jax.tree.leaves(f(v[0]))[0][None], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    return jax.jit(mapped).lower(x) if lower else jax.eval_shape(mapped, x)


CALLS = {
    "all_reduce": lambda v, axis="x", **o: jaxring.all_reduce(v, axis, **o),
    "all_gather": lambda v, axis="x", **o: jaxring.all_gather(v, axis, **o),
    "reduce_scatter": lambda v, axis="x", **o: jaxring.reduce_scatter(v, axis, **o),
    "all_to_all": lambda v, axis="x", **o: jaxring.all_to_all(v, axis, 0, 0, **o),
    "permute": lambda v, axis="x", **o: jaxring.permute(v, axis, [(0, 1)], **o),
    "broadcast": lambda v, axis="x", **o: jaxring.broadcast(v, axis, **o),
    "reduce": lambda v, axis="x", **o: jaxring.reduce(v, axis, **o),
    "gather": lambda v, axis="x", **o: jaxring.gather(v, axis, **o),
    "scatter": lambda v, axis="x", **o: jaxring.scatter(v, axis, **o),
    "barrier": lambda v, axis="x", **o: jaxring.barrier(axis, **o),
    "send": lambda v, axis="x", **o: jaxring.send(v, axis, [(0, 1)], **o),
    "recv": lambda v, axis="x", **o: jaxring.recv(v, axis, [(0, 1)], **o),
    "ragged_all_to_all": lambda v, axis="x", **o: jaxring.ragged_all_to_all(
        v, v, *[jnp.zeros(N, jnp.int32)] * 4, axis_name=axis, **o
    ),
}
SCHEDULED = [name for name in CALLS if name not in ("barrier", "send", "recv", "ragged_all_to_all")]
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def test_the_good_calls_are_good():
    for call in CALLS.values():
        trace(call)


@pytest.mark.parametrize("name", CALLS)
def test_unknown_axis(name):
    with pytest.raises(NameError, match=rf"jaxring\.{name}: axis 'rows' is not bound here \(bound mesh axes: 'x'\)"):
        trace(lambda v: CALLS[name](v, "rows"))
    with pytest.raises(NameError, match=rf"jaxring\.{name}: axis 'rows'.*jax\.shard_map"):
        trace(lambda v: CALLS[name](v, ("x", "rows")))


@pytest.mark.parametrize("name", CALLS)
def test_outside_shard_map(name):
    with pytest.raises(NameError, match=r"bound mesh axes: none.*Call it inside jax\.shard_map or jax\.pmap"):
        CALLS[name](jnp.ones((N, 3)))


@pytest.mark.parametrize("name", CALLS)
def test_an_axis_named_twice(name):
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: .*twice"):
        trace(lambda v: CALLS[name](v, ("x", "x")))


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("op", ["add", "SUM", "", "avg"])
def test_unknown_op(name, op):
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: unknown op '{op}'; use one of and, max, mean, min, or"):
        trace(lambda v: CALLS[name](v, op=op))


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
    calls = {
        "all_gather": lambda v: jaxring.all_gather(v, "x", axis=bad + (bad > 0), tiled=tiled),
        "gather": lambda v: jaxring.gather(v, "x", axis=bad + (bad > 0), tiled=tiled),
        "scatter": lambda v: jaxring.scatter(v, "x", axis=bad, tiled=tiled),
        "reduce_scatter": lambda v: jaxring.reduce_scatter(v, "x", scatter_dimension=bad, tiled=tiled),
        "all_to_all": lambda v: jaxring.all_to_all(v, "x", bad, 0, tiled=tiled),
        "all_to_all ": lambda v: jaxring.all_to_all(v, "x", 0, bad, tiled=tiled),
    }
    for name, call in calls.items():
        with pytest.raises(
            ValueError, match=rf"jaxring\.{name.strip()}: \w+={bad}.* no dimension|jaxring.*no dimension"
        ):
            trace(call)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"])
def test_scalars_have_no_dimension_to_split_or_join(name):
    options = {"tiled": True}
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: .*no dimension of a value with 0 dimensions"):
        trace(lambda v: CALLS[name](v[0, 0], **options))


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize("root", [-1, N, 99])
def test_root_out_of_range(name, root):
    with pytest.raises(
        ValueError, match=rf"jaxring\.{name}: root={root} is no rank of axis 'x', which has ranks 0\.\.3"
    ):
        trace(functools.partial(CALLS[name], root=root))


@pytest.mark.parametrize("name", ["permute", "send", "recv"])
@pytest.mark.parametrize(
    ("perm", "message"),
    [
        ([(0, 1), (2, 1)], "perm repeats target 1"),
        ([(0, 1), (0, 2)], "perm repeats source 0.*broadcast or all_gather"),
        ([(0, 4)], r"perm names target 4, but axis 'x' has ranks 0\.\.3"),
        ([(-1, 0)], "perm names source -1"),
    ],
)
def test_bad_perm(name, perm, message):
    call = {
        "permute": lambda v: jaxring.permute(v, "x", perm),
        "send": lambda v: jaxring.send(v, "x", perm),
        "recv": lambda v: jaxring.recv(v, "x", perm),
    }[name]
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: {message}"):
        trace(call)


@pytest.mark.parametrize("name", SCHEDULED)
def test_unknown_algorithm_and_protocol(name):
    with pytest.raises(
        ValueError, match=rf"jaxring\.{name}: unknown algorithm 'fast'; use one of direct, oneshot, ring"
    ):
        trace(functools.partial(CALLS[name], algorithm="fast"))
    with pytest.raises(
        ValueError, match=rf"jaxring\.{name}: unknown protocol 'LL'; use one of memory, simple, ll, ll128"
    ):
        trace(functools.partial(CALLS[name], protocol="LL"))


def test_what_only_gpus_have_is_refused_where_the_platform_is_known():
    # While it is traced nobody knows the platform, and on GPUs both are right.
    for options, message in (
        ({"protocol": "ll128"}, "protocol 'll128' is for ranks on GPUs; on CPUs there are memory, simple, ll"),
        ({"algorithm": "copy_engine"}, "algorithm 'copy_engine' is for ranks on GPUs; on CPUs there are direct, "),
    ):
        gather = functools.partial(CALLS["all_gather"], **options)
        trace(gather)
        with pytest.raises(ValueError, match=rf"jaxring\.all_gather: {message}"):
            trace(gather, lower=True)


@pytest.mark.parametrize("name", SCHEDULED)
def test_algorithm_that_does_not_serve(name):
    for algorithm in ALGORITHMS:
        if algorithm in serving(name):
            trace(functools.partial(CALLS[name], algorithm=algorithm))
        else:
            choices = ", ".join(serving(name))
            with pytest.raises(
                ValueError, match=rf"jaxring\.{name}: algorithm '{algorithm}' does not serve.*{choices}"
            ):
                trace(functools.partial(CALLS[name], algorithm=algorithm))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("timeout", [-1, 0, -0.5, float("nan")])
def test_bad_timeout(name, timeout):
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: timeout must be a positive number of seconds"):
        trace(functools.partial(CALLS[name], timeout=timeout))


@pytest.mark.parametrize("name", [*(name for name in SCHEDULED if name != "permute"), "ragged_all_to_all"])
@pytest.mark.parametrize(
    "groups", [[[0, 1], [2]], [[0, 1], [1, 2]], [[0, 1, 2, 4]], [[0, 1]], [], [[0, 1], [2, -1]]], ids=str
)
def test_bad_axis_index_groups(name, groups):
    with pytest.raises(ValueError, match=rf"jaxring\.{name}: axis_index_groups must hold each index 0\.\.3.*one size"):
        trace(functools.partial(CALLS[name], axis_index_groups=groups))


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


@pytest.mark.parametrize("name", CALLS)
def test_a_value_in_place_of_the_axis(name):
    message = rf"jaxring\.{name}: the axis must be the name of one.*, not an array of float32\[4, 3\]; the value comes"
    with pytest.raises(TypeError, match=message):
        trace(lambda v: CALLS[name](jnp.ones(3), v))
    with pytest.raises(TypeError, match=message):
        trace(lambda v: CALLS[name](jnp.ones(3), ("x", np.ones((4, 3), np.float32))))


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


@pytest.mark.parametrize("name", SCHEDULED)
def test_options_that_are_no_names(name):
    for bad in (["ring"], 3, np.ones(2)):
        with pytest.raises(ValueError, match=rf"jaxring\.{name}: algorithm must be one's name, not "):
            trace(functools.partial(CALLS[name], algorithm=bad))
        with pytest.raises(ValueError, match=rf"jaxring\.{name}: unknown protocol .*; use one of"):
            trace(functools.partial(CALLS[name], protocol=bad))
        if name in REDUCING:
            with pytest.raises(ValueError, match=rf"jaxring\.{name}: unknown op .*; use one of and, max"):
                trace(functools.partial(CALLS[name], op=bad))


@pytest.mark.parametrize("name", [*(name for name in SCHEDULED if name != "permute"), "ragged_all_to_all"])
def test_groups_that_are_no_lists(name):
    for bad in (3, [0, 1, 2, 3], [[0.0, 1.0], [2.0, 3.0]]):
        with pytest.raises(TypeError, match=rf"jaxring\.{name}: axis_index_groups must be a list of lists of indices"):
            trace(functools.partial(CALLS[name], axis_index_groups=bad))


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


@pytest.mark.parametrize("bad", [7.9, 1.0, None, "1", np.float32(1)])
@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_that_is_no_integer(name, bad):
    """It is not rounded, and nothing is taken for rank 0; any integer type will do."""
    with pytest.raises(TypeError, match=rf"jaxring\.{name}: root must be an integer, not "):
        trace(lambda v: CALLS[name](v, root=bad))
    trace(lambda v: CALLS[name](v, root=np.uint8(3)))


def test_other_arguments_that_are_no_integers():
    for call, words in (
        (lambda v: jaxring.permute(v, "x", [(0, 1.5)]), r"jaxring\.permute: a target must be an integer, not 1\.5"),
        (lambda v: jaxring.send(v, "x", [(0, 1)], tag=0.5), r"jaxring\.send: tag must be an integer, not 0\.5"),
        (lambda v: jaxring.recv(v, "x", [(0, 1)], tag=None), r"jaxring\.recv: tag must be an integer, not None"),
        (lambda v: jaxring.all_gather(v, "x", axis=0.5), r"jaxring\.all_gather: axis must be an integer, not 0\.5"),
        (
            lambda v: jaxring.all_reduce(v, "x", axis_index_groups=[[0, 1.2], [2, 3]]),
            r"jaxring\.all_reduce: axis_index_groups must be a list of lists of indices",
        ),
        (
            lambda v: jaxring.all_reduce(v, "x", timeout="8"),
            r"jaxring\.all_reduce: timeout must be a number of seconds",
        ),
    ):
        with pytest.raises(TypeError, match=words):
            trace(call)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 1e12])
def test_a_deadline_that_no_clock_can_hold(timeout):
    """The engine would take it for one that is over."""
    with pytest.raises(ValueError, match=r"jaxring\.all_reduce: timeout must be a positive number of seconds"):
        trace(lambda v: jaxring.all_reduce(v, "x", timeout=timeout))
