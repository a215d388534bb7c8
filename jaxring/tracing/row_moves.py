"""Rows of an array in another order: a gather whose transpose is a gather, too.

XLA makes a scatter of a gather's transpose. On CPUs that is a loop over the rows, and on GPUs it adds in no fixed order
where it is not told that the rows are apart. Code that routes rows knows both directions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxring import _compat
from jaxring.tracing.primitives import define

# Operands: rows, the row that each row of the result comes from, and the inverse. A number past the end is a row of
# zeros.
rows_p = Primitive("jaxring_rows")


def permute_rows(x: Any, origin: Any, target: Any) -> Any:
    """The array whose row i is row ``origin[i]`` of ``x``, and zeros where that is past the end.

    ``target`` is the inverse, as long as ``x``: row j of ``x`` is row ``target[j]`` of the result, or is in none where
    that is past the end.
    """
    return rows_p.bind(x, origin, target)  # type: ignore[no-untyped-call]


def _abstract(x: Any, origin: Any, target: Any) -> Any:
    varying = frozenset[Any]().union(*(each.manual_axis_type.varying for each in (x, origin, target)))
    return _compat.with_varying(x, (*origin.shape, *x.shape[1:]), varying)


def _gather(x: Any, origin: Any, target: Any) -> Any:
    del target
    if x.shape[0] == 0:  # of which no row can be gathered
        return jnp.zeros((*origin.shape, *x.shape[1:]), x.dtype)
    return x.at[origin].get(mode="fill", fill_value=0)


def _jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    x, origin, target = primals
    y = permute_rows(x, origin, target)
    if isinstance(tangents[0], ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, permute_rows(tangents[0], origin, target)


def _transpose(ct: Any, x: Any, origin: Any, target: Any) -> list[Any]:
    back = ad.Zero(x.aval) if isinstance(ct, ad.Zero) else permute_rows(ct, target, origin)
    return [back, None, None]


def _batch(args: Any, dims: Any) -> tuple[Any, int]:
    x, origin, target = args
    if dims[1] is None and dims[2] is None:
        return permute_rows(jnp.moveaxis(x, dims[0], -1), origin, target), x.ndim - 1
    size = next(arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None)
    x, origin, target = (
        jnp.broadcast_to(arg, (size, *arg.shape)) if dim is None else jnp.moveaxis(arg, dim, 0)
        for arg, dim in zip(args, dims, strict=True)
    )
    # The entries one below the other, each with its own rows; what is past an end is past all ends.
    first = jnp.arange(size, dtype=origin.dtype)[:, None]

    def shifted(numbers: Any, rows: int) -> Any:
        return jnp.where(numbers < rows, numbers + first * rows, size * rows).reshape(-1)

    rows = x.reshape(size * x.shape[1], *x.shape[2:])
    whole = permute_rows(rows, shifted(origin, x.shape[1]), shifted(target, origin.shape[1]))
    return whole.reshape(*origin.shape, *x.shape[2:]), 0


define(rows_p, _abstract)
mlir.register_lowering(rows_p, mlir.lower_fun(_gather, multiple_results=False))
ad.primitive_jvps[rows_p] = _jvp
ad.primitive_transposes[rows_p] = _transpose
batching.primitive_batchers[rows_p] = _batch
