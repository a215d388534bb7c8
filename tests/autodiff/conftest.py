"""Fixtures for tests of differentiation and batching: 64-bit types."""

from __future__ import annotations

import pathlib
import sys

import jax
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield
