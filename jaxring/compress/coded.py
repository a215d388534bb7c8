"""A compressed all-reduce between two ranks on CPUs: one collective whose messages are codes.

The engine encodes values where it sends them, and decodes them where they arrive (ffi/engine/operation/
combine_codes.cc), so codes are nowhere but in messages. It computes what `jaxring.compress.steps` does for other ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxring.compress.formats import BLOCK
from jaxring.plan.codes import CodesSpec
from jaxring.tracing.lowering.custom_call import custom_call
from jaxring.tracing.lowering.donation import stays

if TYPE_CHECKING:
    from jaxring.compress.steps import Call


def serves(call: Call) -> bool:
    """Whether the engine has this all-reduce: on CPUs, and of two ranks, which need no other algorithm."""
    return call.on_cpus and call.axes.size == 2


def lower(call: Call, ctx: Any, x: Any, key: Any) -> Any:
    """The custom call of an all-reduce of ``x``, float32. A second result is what the rank should add to its next
    value."""
    form = call.form
    codes = CodesSpec(
        form=form.name,
        number=form.number,
        block=BLOCK,
        block_bytes=form.block_bytes,
        stochastic=call.stochastic,
        first_word=call.first_word,
    )
    return custom_call(
        ctx,
        [x, key],
        collective="all_reduce",
        axes=call.axes,
        options=call.options,
        data=ctx.avals_in[0],
        aliases=None if stays(ctx.module_context, x) else {0: 0},
        codes=codes,
    )
