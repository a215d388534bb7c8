"""Neighbouring collectives share a call: when they do, when they must not, and that no bit changes."""

from __future__ import annotations

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import pytrees
from jaxring.settings import settings
from jaxring.tracing.lowering import fusion
from tests import starting
from tests.tracing.fusion.fus_tree import gradients, summed

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()), ("x",))


def lowered(mesh, f, *operands):
    run = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    return run.lower(*operands)


def leaves_of_calls(mesh, f, *operands):
    """How many collectives each custom call of the compiled program holds, and the program."""
    program = lowered(mesh, f, *operands)
    text = program.as_text()
    calls = [line for line in text.splitlines() if "custom_call @jaxring_" in line]
    return [line.count("\\22collective\\22") for line in calls], program.compile()


X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def test_a_pytree_is_one_call_with_the_bits_of_many(mesh):
    tree = gradients(8)
    assert summed(mesh, tree, fused=True) == summed(mesh, tree, fused=False)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
@pytest.mark.sampled(2)
def test_between_processes_too(processes, devices):
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", str(processes), "--devices-per-process", str(devices)]
    done = starting.run(
        [*command, str(HERE / "fus_tree.py")],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_jax_lax_under_install(mesh):
    def f(x):
        return [lax.psum(leaf, "x") for leaf in (x, 2 * x, x + 1)]

    with jaxring.installed():
        held, run = leaves_of_calls(mesh, f, X)
    assert held == [3]
    total = np.tile(X.sum(axis=0), (8, 1))
    for got, expected in zip(run(X), (total, 2 * total, total + 8), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_other_collectives(mesh):
    def f(x):
        gathered = jaxring.all_gather([x, -x], "x", axis=0, tiled=True)
        scattered = jaxring.reduce_scatter([g.T for g in gathered], "x", scatter_dimension=1, tiled=True)
        return [s.T for s in scattered]

    held, run = leaves_of_calls(mesh, f, X)
    assert held == [2, 2]
    plus, minus = run(X)
    np.testing.assert_array_equal(plus, 8 * X)
    np.testing.assert_array_equal(minus, -8 * X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jaxring.all_reduce(jaxring.all_reduce(x, "x") + x, "x"),
        lambda x: (jaxring.all_reduce(x, "x"), jaxring.all_reduce(jnp.dot(x.T, x)[:1], "x")),
        lambda x: (jaxring.all_reduce(x, "x"), jaxring.all_reduce(x, "x", "max")),
        lambda x: (
            jaxring.all_reduce(x, "x"),
            jaxring.all_reduce(x, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        ),
    ],
    ids=["one needs the other", "compute between", "operation", "groups"],
)
def test_what_stays_apart(mesh, f):
    held, _ = leaves_of_calls(mesh, f, X)
    assert held == [1, 1]


def test_the_limit_is_in_bytes(mesh):
    big = np.zeros((8, settings().fusion_bytes // 4 + 1), np.float32)
    half = np.zeros((8, settings().fusion_bytes // 8), np.float32)
    assert leaves_of_calls(mesh, lambda *t: jaxring.all_reduce(t, "x"), X, big, X)[0] == [1, 1, 1]
    assert leaves_of_calls(mesh, lambda *t: jaxring.all_reduce(t, "x"), half, half, half)[0] == [2, 1]


def test_in_loops_gradients_and_branches(mesh):
    def loss(w, x):
        def layer(h, _):
            a, b = jaxring.all_reduce((h * w, h + w), "x", "mean")
            return jnp.tanh(a + b), None

        h, _ = lax.scan(layer, x, None, length=3)
        return (h**2).sum()

    def f(x):
        w = x[0] * 0.1
        return jax.tree.map(lambda g: g[None], jaxring.all_reduce(jax.grad(loss, (0, 1))(w, x[0]), "x"))

    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    held, run = leaves_of_calls(mesh, f, x)
    assert max(held) == 2
    with fusion.apart():
        apart = lowered(mesh, f, x).compile()
    for ours, theirs in zip(run(x), apart(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_donated_operands(mesh):
    run = jax.jit(
        jax.shard_map(lambda *t: jaxring.all_reduce(t, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x")),
        donate_argnums=(0, 1),
    )
    sharding = jax.NamedSharding(mesh, P("x"))
    a, b = jax.device_put(X, sharding), jax.device_put(2 * X, sharding)
    y, z = run(a, b)
    np.testing.assert_array_equal(y, np.tile(X.sum(axis=0), (8, 1)))
    np.testing.assert_array_equal(z, np.tile(2 * X.sum(axis=0), (8, 1)))
    assert a.is_deleted()
    assert b.is_deleted()


def test_a_leaf_that_fails_fails_the_call(mesh):
    # Rank 0 never comes: the branches differ. All ranks that did come are told, and by both leaves' deadline.
    def f(x):
        def join(v):
            a, b = jaxring.all_reduce((v, v + 1), "x", timeout=1)
            return a + b

        return lax.cond(lax.axis_index("x") == 0, lambda v: v, join, x)

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"DEADLINE_EXCEEDED.*did not reach this call"):
        lowered(mesh, f, X).compile()(X).block_until_ready()


def test_the_benchmark_runs(capsys):
    assert pytrees.main(["--leaves", "3", "--bytes", "1K", "--iters", "2"]) == 0
    assert "a call per leaf / one call" in capsys.readouterr().out
