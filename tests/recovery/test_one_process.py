"""A job of one process: what is aborted ends, and goes on once the job is formed anew."""

from __future__ import annotations

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
