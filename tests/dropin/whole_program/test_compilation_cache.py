"""The persistent compilation cache: programs that were compiled with whole programs in force are kept apart."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxring
from jaxring.dropin.whole_program import compilation_cache
from tests.dropin.whole_program.wp_programs import left, matrix, mesh


def program():
    """A new jitted function with an all-reduce of the partitioner's, and its operand."""
    return jax.jit(lambda x: x.sum(0)), matrix(mesh((4, 2)), "x", "y")


@pytest.fixture
def persistent_cache(tmp_path):
    """A function that tells how many programs of `program()` are in the persistent cache, which is empty and in use."""
    from jax._src import compilation_cache

    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    former = [getattr(jax.config, name) for name in names]
    try:
        for name, value in zip(names, (str(tmp_path), 0, -1), strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield lambda: len(list(tmp_path.glob("jit__lambda*-cache")))
    finally:
        for name, value in zip(names, former, strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def compiled_anew(f, x):
    jax.clear_caches()
    return f.lower(x).compile()


def test_the_persistent_cache_keeps_both_kinds_apart(persistent_cache):
    f, x = program()
    assert left(compiled_anew(f, x))
    entries = persistent_cache()
    with jaxring.installed(whole_program=True):
        assert not left(compiled_anew(f, x))
        assert persistent_cache() == entries + 1
        # The second time from the cache, without a transformation.
        again = compiled_anew(f, x)
        assert not left(again)
        np.testing.assert_array_equal(again(x), np.asarray(x).sum(0))
    assert left(compiled_anew(f, x))
    assert persistent_cache() == entries + 1


@pytest.mark.parametrize("name", ["version", "digest"])
def test_what_another_jaxring_has_compiled_is_compiled_again(persistent_cache, monkeypatch, name):
    """One of another version, or of other sources of the same version."""
    f, x = program()
    with jaxring.installed(whole_program=True):
        compiled_anew(f, x)
        compiled_anew(f, x)
    entries = persistent_cache()
    monkeypatch.setattr(compilation_cache, name, lambda *_: "other")
    with jaxring.installed(whole_program=True):
        compiled_anew(f, x)
        assert persistent_cache() == entries + 1
        compiled_anew(f, x)
    assert persistent_cache() == entries + 1


def test_sources_that_write_other_calls_have_another_digest(tmp_path):
    assert all((compilation_cache.PACKAGE / name).exists() for name in compilation_cache.WRITERS)
    for name in compilation_cache.WRITERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("")
    written = tmp_path / "dropin" / "whole_program" / "hlo_calls.py"
    written.parent.mkdir()
    found = {compilation_cache.digest(tmp_path)}
    for change in (written, tmp_path / "runtime" / "call.py"):
        change.write_text("1")
        found.add(compilation_cache.digest(tmp_path))
    other = tmp_path / "runtime" / "job.py"
    other.write_text("1")
    assert len(found) == 3
    assert compilation_cache.digest(tmp_path) in found


def test_the_cache_key_of_others_is_kept(monkeypatch, request):
    from jax._src import cache_key

    request.addfinalizer(jaxring.uninstall)
    monkeypatch.setattr(cache_key, "custom_hook", lambda: "theirs")
    former = cache_key.custom_hook
    jaxring.install(whole_program=True)
    ours = cache_key.custom_hook
    assert ours().startswith("theirsjaxring ")
    monkeypatch.setattr(cache_key, "custom_hook", lambda: ours() + "later")
    jaxring.uninstall()
    assert cache_key.custom_hook() == "theirslater"
    monkeypatch.setattr(cache_key, "custom_hook", former)
