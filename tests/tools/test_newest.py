"""tools/newest.py tells what a new jax has changed: shown with changes that are made up."""

from __future__ import annotations

import jax
import pytest
from jax.extend.core import Primitive

import jaxring.lax
from jaxring import _compat
from tests import ROOT
from tools import newest


def test_all_names_of_jax_that_the_package_uses_exist():
    """Private ones in _compat.py above all, on each version of jax that is tested."""
    private = newest.names_of_jax((ROOT / "jaxring" / "_compat.py").read_text())
    assert {"jax._src.core.Trace", "jax._src.interpreters.mlir._lowerings", "jax._src.cache_key.custom_hook"} <= private
    assert newest.missing_in_packages() == []


def test_names_that_are_gone_are_told():
    source = """
import jax.numpy as jnp
from jax._src import core, no_such_module

def f():
    from jax._src import config as settings
    from jaxlib import _no_such_extension
    core.NoSuchClass.method()
    settings._no_such_value = jnp.no_such_function(settings._check_vma.value)

def g(settings):
    return settings.that_is_not_of_jax, no_such_module.function
"""
    assert newest.missing_names(source) == [
        "jax._src.config._no_such_value is gone",
        "jax._src.core.NoSuchClass is gone",
        "jax._src.no_such_module is gone",
        "jax.numpy.no_such_function is gone",
        "jaxlib._no_such_extension is gone",
    ]


def test_names_of_some_versions_may_be_missing():
    """What the package asks for before it uses it, wherever that is, and what it uses instead."""
    source = """
from jax._src import core

def f():
    def later():
        return core.newer()

    if hasattr(core, "newer"):
        return later
    else:
        return core.older()
"""
    assert newest.missing_names(source) == []
    assert newest.missing_names(source.replace('hasattr(core, "newer")', "core")) == [
        "jax._src.core.newer is gone",
        "jax._src.core.older is gone",
    ]


def test_deprecated_names_are_told(monkeypatch):
    def warned(name):
        import warnings

        warnings.warn(f"jax.lax.{name} will go", DeprecationWarning, stacklevel=2)

    monkeypatch.setattr(jax.lax, "__getattr__", warned, raising=False)
    assert newest.missing_names("import jax\njax.lax.psum, jax.lax.pold") == [
        "jax.lax.pold is deprecated: jax.lax.pold will go"
    ]


def test_new_collectives_are_told(monkeypatch):
    assert newest.unknown_collectives() == []

    def pmedian(x, axis_name):
        """A collective that no JAX has."""

    pmedian.__module__ = jax.lax.psum.__module__
    monkeypatch.setattr(jax.lax, "pmedian", pmedian, raising=False)
    found = _compat.collective_primitives()
    monkeypatch.setattr(_compat, "collective_primitives", lambda: {**found, "pmedian": Primitive("pmedian")})
    primitive, function = newest.unknown_collectives()
    assert primitive.startswith("jax has the collective primitive pmedian:")
    assert function == "jax has the collective jax.lax.pmedian, which jaxring/lax.py does not serve"
    monkeypatch.setattr(jaxring.lax, "pmedian", pmedian, raising=False)
    assert newest.unknown_collectives() == [primitive]


RESULTS = """<testsuites><testsuite>
<testcase classname="tests.dropin.test_values" name="test_lax[True]"/>
<testcase classname="tests.dropin.test_values" name="test_lax[False]">
<failure message="AssertionError: psum&#10;Not equal">trace</failure></testcase>
<testcase classname="" name="tests.overlap.test_overlap"><error message="collection failure">trace</error></testcase>
</testsuite></testsuites>"""


def test_failed_tests_are_told(tmp_path):
    results = tmp_path / "newest.xml"
    results.write_text(RESULTS)
    assert newest.failed_tests(results) == [
        "tests.dropin.test_values::test_lax[False] fails: AssertionError: psum",
        "tests.overlap.test_overlap fails: collection failure",
    ]


@pytest.mark.parametrize("ran", [True, False])
def test_the_exit_status_says_whether_there_is_any(ran, tmp_path, capsys):
    results = tmp_path / "newest.xml"
    if ran:
        results.write_text("<testsuites/>")
    assert newest.main([str(results)]) == (not ran)
    printed = capsys.readouterr().out
    assert printed.startswith(f"jax {jax.__version__}, ")
    assert ("brings nothing that is new" in printed) == ran
    assert ("the tests did not run to their end" in printed) != ran
