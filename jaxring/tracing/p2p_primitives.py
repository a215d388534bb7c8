"""Primitives whose operands are not one array of blocks: send, recv and ragged_all_to_all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.core import Primitive

from jaxring import _compat
from jaxring.tracing.lowering.custom_call import custom_call
from jaxring.tracing.primitives import define, lower

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


send_p = Primitive("jaxring_send")
recv_p = Primitive("jaxring_recv")
recv_p.multiple_results = True
ragged_p = Primitive("jaxring_ragged_all_to_all")


def _send_abstract(x: Any, token: Any, *, axes: Axes, options: Options) -> Any:
    """The token has the value of the former one, whatever is sent."""
    del x, axes, options
    return token


def _recv_abstract(
    token: Any, *, shape: tuple[int, ...], dtype: Any, varying: tuple[Hashable, ...], axes: Axes, options: Options
) -> Any:
    del axes, options
    names = frozenset(varying) if _compat.tracks_varying() else frozenset()
    return [_compat.with_varying(token, shape, names).update(dtype=np.dtype(dtype)), token]


def _ragged_abstract(x: Any, output: Any, *sizes: Any, axes: Axes, options: Options) -> Any:
    del options
    varying = frozenset(axes.mesh_names) if _compat.tracks_varying() else frozenset()
    varying = varying.union(*(operand.manual_axis_type.varying for operand in (x, output, *sizes)))
    return _compat.with_varying(output, output.shape, varying)


def _lower_send(ctx: Any, x: Any, token: Any, *, axes: Axes, options: Options) -> Any:
    return custom_call(
        ctx,
        [x, token],
        collective="send",
        axes=axes,
        options=options,
        data=ctx.avals_in[0],
        aliases={1: 0},
    )


def _lower_recv(ctx: Any, token: Any, *, shape: Any, dtype: Any, varying: Any, axes: Axes, options: Options) -> Any:
    del shape, dtype, varying
    return custom_call(
        ctx,
        [token],
        collective="recv",
        axes=axes,
        options=options,
        data=ctx.avals_out[0],
        aliases={0: 1},
    )


def _lower_ragged(ctx: Any, *operands: Any, axes: Axes, options: Options) -> Any:
    x = ctx.avals_in[0]
    return custom_call(
        ctx,
        list(operands),
        collective="ragged_all_to_all",
        axes=axes,
        options=options,
        data=x,
        aliases={1: 0},
        row_elements=int(np.prod(x.shape[1:], dtype=np.int64)),
    )


define(send_p, _send_abstract)
define(recv_p, _recv_abstract)
define(ragged_p, _ragged_abstract)
lower(send_p, _lower_send)
lower(recv_p, _lower_recv)
lower(ragged_p, _lower_ragged)
