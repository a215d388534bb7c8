"""A call of 64 Ki float32 among some devices, for tests of the choice of an algorithm."""

from __future__ import annotations

from typing import Any

from jaxring.runtime.call import CallSpec


def chosen_call(collective: str, devices: tuple[int, ...], **more: Any) -> CallSpec:
    """``more``: further fields of the CallSpec."""
    return CallSpec(
        collective=collective,
        op=None,
        dtype="float32",
        shape=(1 << 16,),
        axes="r",
        timeout=60.0,
        site="program.py:1",
        call=1,
        devices=devices,
        program="",
        block=1 << 16,
        **more,
    )
