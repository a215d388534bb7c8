"""What travels as another dtype: typed PRNG keys, and integers of 4 bits, which the engine does not know."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring.tracing import checks

if TYPE_CHECKING:
    from collections.abc import Callable

SENT_AS = {"int4": jnp.int8, "uint4": jnp.uint8}


def movable(what: str, x: Any) -> None:
    """TypeError for a dtype that the engine does not know and that is not sent as another one."""
    if not _is_key(x) and x.dtype.name not in SENT_AS:
        checks.movable(what, x)


def on_the_wire(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the array that is sent in place of ``x``, and a function that gives the received array ``x``'s dtype.

    Both arrays have the leading dimensions of ``x``.
    """
    if _is_key(x):
        return jax.random.key_data(x), functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(x))
    if x.dtype.name in SENT_AS:
        dtype = x.dtype
        return x.astype(SENT_AS[dtype.name]), lambda y: y.astype(dtype)
    return x, lambda y: y


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
