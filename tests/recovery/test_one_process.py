"""A job of one process: what is aborted ends, and goes on once the job is formed anew."""

from __future__ import annotations

import logging
import math
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import recovery


def test_abort_ends_what_waits_and_refuses_until_the_job_is_formed_anew():
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    x = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), NamedSharding(mesh, P("x")))
    compiled = {
        name: jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        for name, body in (
            ("sum", lambda v: jaxring.all_reduce(v, "x")),
            ("lost", lambda v: jaxring.recv(jax.ShapeDtypeStruct(v.shape, v.dtype), "x", [(0, 1)], tag=77)[0] + v),
        )
    }
    total = np.tile(np.asarray(x).sum(axis=0), (2, 1))
    np.testing.assert_array_equal(compiled["sum"](x), total)
    assert recovery.members().lost == ()
    with pytest.raises(jaxring.JaxringError, match=r"has not called jaxring.suspend\(\)"):
        jaxring.resume()
    before = recovery.members().epoch
    assert jaxring.suspend() == recovery.Membership(before + 1, 1, (0,))
    assert jaxring.counters()["link_bytes"] == 0
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"called jaxring.suspend\(\). Go on with jaxring.resume\(\)"):
        jax.block_until_ready(compiled["sum"](x))
    assert jaxring.resume() == recovery.members()
    np.testing.assert_array_equal(compiled["sum"](x), total)
    for renew in (jaxring.rebuild, jaxring.shrink):
        before = recovery.members().epoch
        waits = compiled["lost"](x)  # nobody sends
        while jaxring.counters()["in_flight"] < 2:
            time.sleep(0.001)
        jaxring.abort("enough")
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"ABORTED.*called jaxring.abort\(\): enough"):
            jax.block_until_ready(waits)
        assert "enough" in (recovery.halted() or "")
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"Go on with jaxring.rebuild\(\)"):
            jax.block_until_ready(compiled["sum"](x))
        assert renew() == recovery.Membership(before + 1, 1, (0,))
        assert recovery.halted() is None
        np.testing.assert_array_equal(compiled["sum"](x), total)


@pytest.mark.parametrize(("timeout", "error"), [("5", TypeError), (math.nan, ValueError), (0, ValueError)])
@pytest.mark.parametrize("name", ["commit", "rebuild", "shrink", "suspend", "resume"])
def test_a_timeout_that_is_none_changes_nothing(name, timeout, error):
    before = recovery.members()
    with pytest.raises(error, match=rf"jaxring\.{name}: timeout must be a"):
        getattr(jaxring, name)(timeout=timeout)
    assert recovery.members() == before
    assert recovery.halted() is None


def test_the_log_says_why_a_step_does_not_count(caplog):
    with caplog.at_level(logging.WARNING, logger="jaxring"):
        assert jaxring.commit()
        assert "does not count" not in caplog.text
        assert not jaxring.commit(False)
        assert "does not count in any process: process 0 called jaxring.commit(False)" in caplog.text
        jaxring.abort("enough")
        try:
            assert not jaxring.commit()
            assert "process 0 called jaxring.abort(): enough" in caplog.text
        finally:
            jaxring.rebuild()  # other tests have the same process


def test_a_job_that_jax_does_not_form_is_no_job_of_one_process(monkeypatch):
    monkeypatch.setattr(recovery._compat, "leave_distributed", lambda: None)
    monkeypatch.setattr(recovery.service, "forget", lambda: None)
    monkeypatch.setattr(recovery.jax.distributed, "initialize", lambda *_, **__: None)
    try:
        with pytest.raises(jaxring.JaxringError, match=r"JAX counts 1 processes in the next one"):
            jaxring.rebuild(60, size=2, coordinator="127.0.0.1:1")
    finally:
        jaxring.resume()
