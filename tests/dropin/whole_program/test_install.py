"""`install(whole_program=True)`: what it changes, brings back, and what happens where it fails."""

from __future__ import annotations

import gc
import importlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxring
from jaxring import _compat
from jaxring._protobuf import Message
from jaxring.dropin.whole_program import transformation
from tests.dropin.whole_program.wp_programs import left, matrix, mesh


@pytest.fixture(autouse=True)
def _uninstalled():
    """No test leaves the transformation in force for the next."""
    yield
    jaxring.uninstall()


def program():
    """A new jitted function with an all-reduce of the partitioner's, and its operand."""
    return jax.jit(lambda x: x.sum(0)), matrix(mesh((4, 2)), "x", "y")


def ours(f, x) -> bool:
    compiled = f.lower(x).compile()
    return not left(compiled) and "jaxring_all_reduce" in compiled.as_text()


def test_compiled_functions_follow():
    f, x = program()
    expected = f(x)
    jaxring.install()
    assert not ours(f, x)
    jaxring.install(whole_program=True)
    assert ours(f, x)
    operations = jaxring.counters()["operations"]
    np.testing.assert_array_equal(f(x), expected)
    assert jaxring.counters()["operations"] > operations
    jaxring.install()
    assert ours(f, x)
    jaxring.uninstall()
    assert not ours(f, x)
    operations = jaxring.counters()["operations"]
    np.testing.assert_array_equal(f(x), expected)
    assert jaxring.counters()["operations"] == operations


def test_blocks_nest_and_install_outlives_them():
    f, x = program()
    with jaxring.installed(whole_program=True):
        with jaxring.installed():
            assert ours(f, x)
        with jaxring.installed(whole_program=True):
            assert ours(f, x)
        assert ours(f, x)
        jaxring.uninstall()
        assert ours(f, x)
    assert not ours(f, x)
    with jaxring.installed(), jaxring.installed(whole_program=True):
        jaxring.install(whole_program=True)
    assert ours(f, x)


def test_what_was_compiled_stays_as_it_is():
    f, x = program()
    with jaxring.installed(whole_program=True):
        compiled = f.lower(x).compile()
    operations = jaxring.counters()["operations"]
    np.testing.assert_array_equal(compiled(x), np.asarray(x).sum(0))
    assert jaxring.counters()["operations"] > operations


def test_a_failure_leaves_the_module_alone_and_is_warned_of_once(monkeypatch, caplog):
    def fails(module, holding):
        raise ZeroDivisionError(module.name)

    monkeypatch.setattr(transformation, "_transformed", fails)
    monkeypatch.setattr(transformation, "_warned", set())
    f, x = program()
    expected = f(x)
    with jaxring.installed(whole_program=True), caplog.at_level(logging.WARNING, logger="jaxring.install"):
        np.testing.assert_array_equal(f(x), expected)
        np.testing.assert_array_equal(jax.jit(lambda x: x.sum(1))(x), np.asarray(x).sum(1))
        assert not ours(f, x)
    assert caplog.text.count("which keeps XLA's collectives; please report it") == 1
    assert "ZeroDivisionError: jit" in caplog.text


def test_the_runtime_is_told_of_no_call_of_a_module_that_cannot_be_written(monkeypatch):
    def fails(module):
        raise MemoryError

    told = []
    monkeypatch.setattr(transformation.Module, "written", fails)
    monkeypatch.setattr(transformation.Calls, "done", lambda calls: told.append(calls))
    monkeypatch.setattr(transformation, "_warned", set())
    f, x = program()
    expected = f(x)
    with jaxring.installed(whole_program=True):
        np.testing.assert_array_equal(f(x), expected)
    assert len(transformation._warned) == 1
    assert not told


def test_modules_without_collectives_are_not_parsed(monkeypatch):
    def parsed(data):
        raise AssertionError(data)

    monkeypatch.setattr(transformation, "Module", parsed)
    monkeypatch.setattr(transformation, "_warned", set())
    named = Message.of((1, "all-reduce"), (2, "reduce"))
    module = Message.of((1, "jit_all-gather"), (3, Message.of((1, "all-reduce"), (2, named))))
    for on_gpus in (False, True):
        assert transformation.transform(bytes(module), on_gpus) is None
    assert not transformation._warned


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was_after_a_module(monkeypatch, on):
    seen = []
    module = Message.of((3, Message.of((2, Message.of((2, "all-reduce"))))))

    def fails(module, holding):
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    monkeypatch.setattr(transformation, "_transformed", fails)
    monkeypatch.setattr(transformation, "_warned", set())
    was_on = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        assert transformation.transform(bytes(module)) is None
        assert gc.isenabled() == on
    finally:
        (gc.enable if was_on else gc.disable)()
    assert seen == [False]


def test_a_jaxlib_without_the_door_is_an_error_and_changes_nothing(monkeypatch):
    def refused(name, transform):
        raise RuntimeError("jaxlib 0.0 does not let XLA's modules be transformed")

    monkeypatch.setattr(_compat, "register_cpu_transformation", refused)
    with pytest.raises(RuntimeError, match="does not let XLA's modules"):
        jaxring.install(whole_program=True)
    with pytest.raises(RuntimeError, match="does not let XLA's modules"), jaxring.installed(whole_program=True):
        pass
    monkeypatch.undo()
    f, x = program()
    assert not ours(f, x)
    with jaxring.installed(whole_program=True):
        assert ours(f, x)
    assert not ours(f, x)


def test_donation_is_kept_or_its_loss_is_said(monkeypatch, caplog):
    monkeypatch.setattr(transformation, "_warned", set())
    x = matrix(mesh((4, 2)), "x", "y")
    data = np.array(jnp.copy(x))  # a view of x would keep its memory from being donated
    expected = data + data.sum(0)
    f = jax.jit(lambda x: x + x.sum(0), donate_argnums=0)
    with jaxring.installed(whole_program=True), caplog.at_level(logging.WARNING, logger="jaxring.install"):
        np.testing.assert_array_equal(f(x), expected)
    lost = _compat.transformed_modules_lose_donation()
    assert x.is_deleted() is not lost
    assert ("forgets what a program donates" in caplog.text) is lost


def test_sites_are_where_the_program_says_so():
    f, x = jax.jit(lambda x: jnp.abs(x).sum(0)), matrix(mesh((4, 2)), "x", "y")
    with jaxring.installed(whole_program=True):
        np.testing.assert_array_equal(f(x), np.asarray(x).sum(0))
    line = test_sites_are_where_the_program_says_so.__code__.co_firstlineno + 1
    place = f"over 4 of 8 devices at test_install.py:{line} (jit(<lambda>)/reduce_sum)"
    assert place in jaxring.explain()


def test_collectives_that_xla_combines_keep_their_places():
    first = test_collectives_that_xla_combines_keep_their_places.__code__.co_firstlineno + 4

    def step(x):
        low = jnp.sin(x).sum(0)
        high = jnp.cos(x).sum(0)
        return low, high

    with jaxring.installed(whole_program=True):
        compiled = jax.jit(step).lower(matrix(mesh((4, 2)), "x", "y")).compile()
    assert compiled.as_text().count('custom_call_target="jaxring_all_reduce"') == 1
    lines = jaxring.explain(compiled).splitlines()
    assert len(lines) == 2
    for line, place in zip(lines, (first, first + 1), strict=True):
        assert f" at test_install.py:{place} (jit(step)/reduce_sum): inserted by XLA" in line


def test_a_library_s_collective_is_where_the_program_calls_the_library(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "wp_library.py").write_text("def total(x):\n    return x.sum(0)\n")
    monkeypatch.syspath_prepend(folder)
    library = importlib.import_module("wp_library")

    line = test_a_library_s_collective_is_where_the_program_calls_the_library.__code__.co_firstlineno + 8
    f = jax.jit(lambda x: library.total(x) + 1)
    with jaxring.installed(whole_program=True):
        compiled = f.lower(matrix(mesh((4, 2)), "x", "y")).compile()
    assert f" at test_install.py:{line} (jit(<lambda>)/reduce_sum): inserted by XLA" in jaxring.explain(compiled)


def test_transformations_of_others_stay():
    from jaxlib import _xla

    seen = []
    _xla.register_xla_transform("theirs", 0, lambda module: seen.append(b"custom-call" in module))
    try:
        f, x = program()
        with jaxring.installed(whole_program=True):
            assert ours(f, x)
        assert seen == [False]  # it came first
        assert not ours(f, x)
        assert seen == [False, False]
    finally:
        assert _xla.clear_xla_transform("theirs", 0)


def test_serialized_executables_keep_what_they_hold():
    from jax.experimental.serialize_executable import deserialize_and_load, serialize

    f, x = program()
    expected = np.asarray(x).sum(0)
    with jaxring.installed(whole_program=True):
        inside = serialize(f.lower(x).compile())
    outside = serialize(f.lower(x).compile())
    before = jaxring.counters()["operations"]
    np.testing.assert_array_equal(deserialize_and_load(*inside)(x), expected)
    assert (between := jaxring.counters()["operations"]) > before
    with jaxring.installed(whole_program=True):
        np.testing.assert_array_equal(deserialize_and_load(*outside)(x), expected)
    assert jaxring.counters()["operations"] == between


def test_exported_programs_hold_no_call_of_ours():
    """They are partitioned where they are called."""
    f, x = program()
    with jaxring.installed(whole_program=True):
        exported = jax.export.export(f)(x)
    assert "@jaxring_" not in exported.mlir_module()
