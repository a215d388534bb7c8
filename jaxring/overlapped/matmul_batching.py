"""`jax.vmap` of collective matrix products.

Where one operand has the batch, its entries are further rows or columns of one product, which is a pipeline like any
other, and so are its derivatives. Where both have it, there is a product for each entry: the steps of the pipeline are
batched one by one, and a gradient keeps the rows that were gathered. Along an axis of `jax.vmap` that the product
itself names, the ranks' rows lie on one device: that part of the collective is done there, and no pipeline is made.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from jaxring.overlapped.matmul_primitives import GATHER_MATMUL, GATHER_OUTER, MATMUL_SCATTER
from jaxring.tracing.batching import PARTS, in_front, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.overlapped.matmul_primitives import Product
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.batching import Part
    from jaxring.tracing.options import Options


def _gathered(go: Part, x: Any) -> Any:
    """All ranks' rows of a batch (v, r, k), one below the other."""
    rows, _ = PARTS["all_gather"](go, x)
    return rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])


def _gather_matmul(go: Part, x: Any, w: Any, ranks: int) -> Any:
    del ranks
    return _gathered(go, x) @ w


def _gather_outer(go: Part, x: Any, b: Any, ranks: int) -> Any:
    del ranks
    return _gathered(go, x).T @ b


def _matmul_scatter(go: Part, x: Any, w: Any, ranks: int) -> Any:
    product = x @ w
    size, rows, columns = product.shape
    return PARTS["reduce_scatter"](go, product.reshape(size, ranks, rows // ranks, columns))[0]


def _batch(
    product: Product,
    at_once: Callable[[Part, Any, Any, int], Any],
    data: Any,
    args: Any,
    dims: Any,
    *,
    axes: Axes,
    options: Options,
    chunks: int,
) -> tuple[Any, int | None]:
    """``at_once``: the product along an axis of `jax.vmap`, of two batches and for so many ranks."""
    a, b = args
    if data.name in axes.names:
        go = part(product.primitive.name.removeprefix("jaxring_"), data, axes, options)
        return at_once(go, in_front(a, dims[0], data.size), in_front(b, dims[1], data.size), axes.size), 0
    params = {"axes": axes, "options": options, "chunks": chunks}
    if all(dim is None for dim in dims):
        # JAX asks a fancy batcher also where no operand has the batch.
        return product.primitive.bind(a, b, **params), None  # type: ignore[no-untyped-call]
    if None not in dims:
        return jax.vmap(functools.partial(product.pipelined, **params), in_axes=tuple(dims))(a, b), 0
    # (d0, batch, d1)
    a, b = (x if dim is None else jnp.moveaxis(x, dim, 1) for x, dim in zip(args, dims, strict=True))
    rows, columns = product.shape((a.shape[0], a.shape[-1]), (b.shape[0], b.shape[-1]), axes.size)
    # The result's rows are columns of the first operand of an outer product, and rows of the others'.
    longer = dims[1] is None and product is not GATHER_OUTER
    a, b = (x if dim is None else _merged(x, longer) for x, dim in zip((a, b), dims, strict=True))
    y = product.primitive.bind(a, b, **params)  # type: ignore[no-untyped-call]
    if dims[1] is None and product is GATHER_OUTER:
        return y.reshape(data.size, rows, columns), 0
    return y.reshape(rows, data.size, columns), 1


def _merged(x: Any, longer: bool) -> Any:
    """(d0, batch, d1) with the entries as further rows, or else columns."""
    first, size, last = x.shape
    return x.reshape(first * size, last) if longer else x.reshape(first, size * last)


for _product, _at_once in (
    (GATHER_MATMUL, _gather_matmul),
    (GATHER_OUTER, _gather_outer),
    (MATMUL_SCATTER, _matmul_scatter),
):
    batching.fancy_primitive_batchers[_product.primitive] = functools.partial(_batch, _product, _at_once)
