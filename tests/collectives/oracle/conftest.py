"""JAXRING_CHECKSUM=oracle in pytest's own process."""

from __future__ import annotations

import jax
import pytest

from jaxring.errors import JaxringError
from jaxring.settings import Settings, settings
from jaxring.tracing import oracle


@pytest.fixture
def consulted(monkeypatch, request):
    """Turns the oracle on, or what the test asks for, and returns the lists of what it has compared and found.

    An error of a callback would stay in JAX's list of what a program has to wait for, so it goes no further.
    """
    configured = settings()
    values = {name: getattr(configured, name) for name in Settings.__dataclass_fields__}
    monkeypatch.setattr(
        oracle, "settings", lambda: Settings(**{**values, "checksum": getattr(request, "param", "oracle")})
    )
    made, found, compare = [], [], oracle.compare

    def watched(name, call, *rest):
        made.append((name, call))
        try:
            compare(name, call, *rest)
        except JaxringError as error:
            found.append(str(error))

    monkeypatch.setattr(oracle, "compare", watched)
    jax.clear_caches()
    yield made, found
    jax.effects_barrier()
    jax.clear_caches()
