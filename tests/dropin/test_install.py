"""install, uninstall and installed: what they change, bring back, and leave to JAX."""

from __future__ import annotations

import contextlib
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config, core
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _compat
from jaxring.dropin import lowerings
from tests.dropin.inst_cases import mesh


@pytest.fixture(autouse=True)
def _uninstalled():
    """No test leaves the rules changed for the next."""
    yield
    jaxring.uninstall()


def summed():
    """A new jitted function with a psum over all eight ranks."""
    specs = P(("x", "y"))
    return jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, ("x", "y")), mesh=mesh(), in_specs=specs, out_specs=P()))


def ours(f) -> bool:
    return "jaxring_all_reduce" in f.lower(jnp.arange(8.0)).as_text()


def rules():
    states = {
        (name, platform): _compat.lowering_state(primitive, platform)
        for name, primitive in _compat.collective_primitives().items()
        for platform in ("cpu", "cuda", "rocm", "tpu")
    }
    return states, dict(mlir.ir_type_handlers)


def test_every_parallel_primitive_is_known():
    assert lowerings.unknown() == []


def test_an_unknown_primitive_is_reported(monkeypatch):
    found = _compat.collective_primitives()
    monkeypatch.setattr(_compat, "collective_primitives", lambda: {**found, "pmedian": core.Primitive("pmedian")})
    assert lowerings.unknown() == ["pmedian"]


def test_the_table_names_primitives_of_this_jax():
    newer = {"unreduced_pmax", "unreduced_pmin", "pbroadcast_dynamic"}
    assert set(lowerings.TABLE) - set(_compat.collective_primitives()) <= newer


def test_uninstall_brings_back_exactly_what_was_there():
    before = rules()
    jaxring.install()
    states, _ = rules()
    assert all(states[name, "cpu"] != before[0][name, "cpu"] for name in lowerings.served())
    assert {k: v.entry for k, v in states.items() if k[1] != "cpu"} == {
        k: v.entry for k, v in before[0].items() if k[1] != "cpu"
    }
    jaxring.uninstall()
    assert rules() == before


def test_compiled_functions_follow():
    f = summed()
    x = jnp.arange(8.0)
    expected = f(x)
    assert not ours(f)
    operations = jaxring.counters()["operations"]
    jaxring.install()
    assert ours(f)
    np.testing.assert_array_equal(f(x), expected)
    assert jaxring.counters()["operations"] == operations + 1
    jaxring.uninstall()
    assert not ours(f)
    np.testing.assert_array_equal(f(x), expected)
    assert jaxring.counters()["operations"] == operations + 1


def test_blocks_nest_and_install_outlives_them():
    f = summed()
    with jaxring.installed():
        with jaxring.installed():
            assert ours(f)
        assert ours(f)
        jaxring.uninstall()
        assert ours(f)
    assert not ours(f)
    with jaxring.installed():
        jaxring.install()
    assert ours(f)
    with jaxring.installed():
        pass
    jaxring.install()
    assert ours(f)
    jaxring.uninstall()
    assert not ours(f)


def test_a_block_ends_with_an_exception():
    f = summed()
    with pytest.raises(KeyError), jaxring.installed():
        raise KeyError
    assert not ours(f)


def test_blocks_of_several_threads():
    """The last block to end uninstalls, whichever began first."""
    opened, closing = threading.Barrier(3), threading.Event()
    found = []

    def block():
        with jaxring.installed():
            opened.wait(60)
            found.append(ours(summed()))
            closing.wait(60)

    threads = [threading.Thread(target=block) for _ in range(2)]
    with jaxring.installed():
        for thread in threads:
            thread.start()
        opened.wait(60)
    assert ours(summed())
    closing.set()
    for thread in threads:
        thread.join()
    assert found == [True, True]
    assert not ours(summed())


def test_two_calls_alike_are_two_sites():
    def f(x):
        return jax.lax.psum(x, "i"), jax.lax.psum(x + 1, "i"), jax.lax.psum(x, "i")

    with jaxring.installed():
        text = jax.pmap(f, axis_name="i").lower(np.arange(8.0)).as_text()
    assert text.count("@jaxring_all_reduce(") == 1
    assert text.count("\\22collective\\22") == 3


def test_pmap():
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    with jaxring.installed():
        operations = jaxring.counters()["operations"]
        y = jax.pmap(jax.vmap(lambda x: jax.lax.psum(x, ("v", "i")), axis_name="v"), axis_name="i")(x)
        jax.block_until_ready(y)
        assert jaxring.counters()["operations"] == operations + 1
    np.testing.assert_array_equal(y, np.full((8, 2), 120.0))


def test_donated_operand():
    f = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i", donate_argnums=0)
    with jaxring.installed():
        x = jax.pmap(lambda x: x + 1)(np.zeros((8, 1000), np.float32))
        np.testing.assert_array_equal(f(x), np.full((8, 1000), 8.0))
        assert x.is_deleted()


@pytest.mark.parametrize("axis", ["x", "y"])
def test_partially_manual(axis, caplog):
    """An axis is left to the partitioner: the operand is gathered over it for our call."""
    x = jnp.arange(32.0).reshape(8, 4)
    f = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x * x, axis) + jax.lax.ppermute(x, axis, [(0, 1)]).sum(),
            mesh=mesh(),
            in_specs=P(axis),
            out_specs=P(axis),
            axis_names={axis},
            check_vma=False,
        )
    )
    g = jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))
    expected = f(x), g(x)
    with jaxring.installed():
        assert "stablehlo.all_reduce" not in f.lower(x).as_text()
        assert "@jaxring_all_reduce" in f.lower(x).as_text()
        np.testing.assert_array_equal(f(x), expected[0])
        np.testing.assert_allclose(g(x), expected[1], rtol=1e-6)
    other = {"x": "y", "y": "x"}[axis]
    assert f"replicated over ('{other}',), which are left to the partitioner" in caplog.text


def test_gradient_under_check_vma_holds_no_collective_of_xla():
    """The psum that JAX adds for a replicated parameter is ours too."""

    def loss(w, x):
        return jax.lax.pmean(jnp.sum((x @ w) ** 2), ("x", "y"))

    f = jax.shard_map(loss, mesh=mesh(), in_specs=(P(), P(("x", "y"))), out_specs=P())
    g = jax.jit(jax.value_and_grad(f))
    w, x = jnp.ones((3, 2)), jnp.arange(24.0).reshape(8, 3)
    expected = g(w, x)
    with jaxring.installed():
        compiled = g.lower(w, x).compile()
        text = compiled.as_text()
        assert text.count('custom_call_target="jaxring_all_reduce"') == 2
        assert "all-reduce(" not in text
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), compiled(w, x), expected)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: jax.lax.all_gather(x.astype(jnp.float8_e4m3b11fnuz), "i").astype(jnp.float32), "dtype"),
        (lambda x: jax.lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3, 4, 5, 6, 7]]), "differ in size"),
    ],
    ids=["dtype", "groups"],
)
def test_what_the_engine_cannot_carry_stays_with_jax_and_is_said(caplog, call, why):
    x = np.arange(8.0, dtype=np.float32)
    expected = jax.pmap(call, axis_name="i")(x)
    with jaxring.installed(), caplog.at_level(logging.WARNING, logger="jaxring.install"):
        np.testing.assert_array_equal(jax.pmap(call, axis_name="i")(x), expected)
    assert why in caplog.text
    assert "test_install.py" in caplog.text
    assert any("JAX's own collective" in line and why in line for line in jaxring.explain().splitlines())


def test_a_permutation_that_names_a_rank_twice_is_jaxs_error():
    with jaxring.installed(), pytest.raises(ValueError, match="must be unique"):
        jax.pmap(lambda x: jax.lax.ppermute(x, "i", [(0, 1), (2, 1)]), axis_name="i")(np.arange(8.0))


@pytest.mark.parametrize("way", ["lax", "install"])
def test_ppermute_over_axes_in_another_order(way):
    """JAX numbers ranks in the mesh's order all the same; newer versions refuse it unless told."""
    shift = [(i, (i + 3) % 8) for i in range(8)]

    def program(namespace):
        f = lambda x: namespace.ppermute(x, ("y", "x"), shift)  # noqa: E731
        return jax.jit(jax.shard_map(f, mesh=mesh(), in_specs=P(("x", "y")), out_specs=P(("x", "y"))))

    ours = program(jaxring.lax if way == "lax" else jax.lax)
    x = jnp.arange(8.0)
    checked = getattr(config, "raise_on_ppermute_sort_diff", None)
    with contextlib.ExitStack() as stack:
        if way == "install":
            stack.enter_context(jaxring.installed())
        if checked is not None:
            with pytest.raises(RuntimeError, match="same order"):
                ours(x)
            stack.enter_context(checked(False))
        assert "@jaxring_permute" in ours.lower(x).as_text()
        np.testing.assert_array_equal(ours(x), jnp.roll(x, 3))


def test_sites_are_where_the_call_was_traced():
    with jaxring.installed():
        text = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i").lower(np.arange(8.0)).as_text()
    line = test_sites_are_where_the_call_was_traced.__code__.co_firstlineno + 2
    assert f"test_install.py:{line}" in text
