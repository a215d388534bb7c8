"""Fixtures for tests of the collectives: 64-bit types, meshes of this process's devices, jobs of several processes."""

from __future__ import annotations

import jax
import pytest

from tests.collectives.cases.coll_ranks import Ranks


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def ranks():
    """ranks(n) -> Ranks over the first n devices of this process."""
    return lambda n: Ranks(jax.devices()[:n])
