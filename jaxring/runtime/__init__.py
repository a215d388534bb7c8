"""Between JAX and the engine: starts it, answers its planning requests, and remembers what was planned."""

from __future__ import annotations

from typing import Any

import jaxring._native as _native
from jaxring.runtime.explain import Decision, explain, plans
from jaxring.runtime.service import ensure_started, register_targets

__all__ = ["Decision", "build_info", "counters", "ensure_started", "explain", "plans"]


def build_info() -> dict[str, Any]:
    """What was compiled in: versions, compiler, CUDA version ("" without), the CPU instruction set in use."""
    return dict(_native.build_info())


def counters() -> dict[str, int]:
    """What the engine has counted since it started: operations, failures, sleeps, bytes of links and stash."""
    return dict(_native.counters())


register_targets()
