"""Models of other libraries, written with `jax.lax` only, train to the same losses with `jaxring.install`."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxring
from tests.frameworks import fw_task

MESHES = {"data parallel": (8, 1), "tensor parallel too": (2, 4)}


def mesh(shape):
    count = shape[0] * shape[1]
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), ("data", "model"))


@pytest.fixture(scope="module", params=["flax", "equinox"])
def train(request):
    # They come with the extra "test".
    for library in (request.param, "optax"):
        pytest.importorskip(library)
    module = {"flax": "fw_nnx", "equinox": "fw_equinox"}[request.param]
    return importlib.import_module(f"tests.frameworks.{module}").train


@pytest.fixture(scope="module")
def alone(train):
    """The losses on one device."""
    losses = train(mesh((1, 1)))
    assert losses[-1] < 0.8 * losses[0]
    return losses


@pytest.mark.parametrize("shape", MESHES.values(), ids=MESHES)
@pytest.mark.sampled(3)
def test_the_losses_are_those_without_install(train, alone, shape):
    theirs = train(mesh(shape))
    before = jaxring.counters()["operations"]
    with jaxring.installed():
        ours = train(mesh(shape))
    # Each group of ranks that shares a collective has an operation for it.
    assert jaxring.counters()["operations"] - before >= fw_task.STEPS
    # XLA and jaxring add up the ranks' values in different orders, and each step builds on the last one's rounding.
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(ours, alone, rtol=1e-4)
