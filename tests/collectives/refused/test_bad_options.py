"""Axes, groups, roots, algorithms and other options that do not fit fail while the program is traced, and say why."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxring
from jaxring.plan.algorithms import ALGORITHMS, serving
from tests.collectives.refused.traced import CALLS, REDUCING, SCHEDULED, N, trace


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


@pytest.mark.parametrize("name", CALLS)
def test_a_value_in_place_of_the_axis(name):
    message = rf"jaxring\.{name}: the axis must be the name of one.*, not an array of float32\[4, 3\]; the value comes"
    with pytest.raises(TypeError, match=message):
        trace(lambda v: CALLS[name](jnp.ones(3), v))
    with pytest.raises(TypeError, match=message):
        trace(lambda v: CALLS[name](jnp.ones(3), ("x", np.ones((4, 3), np.float32))))


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
