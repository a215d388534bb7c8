"""The platform that a program is lowered for."""

from __future__ import annotations

from typing import Any


def for_cpus(ctx: Any) -> bool:
    """Whether the lowering is for CPUs alone."""
    return tuple(ctx.platforms or ctx.module_context.platforms) == ("cpu",)
