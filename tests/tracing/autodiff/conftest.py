"""Fixtures for tests of differentiation and batching: 64-bit types."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield
