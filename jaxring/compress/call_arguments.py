"""The arguments ``compress`` and ``seed`` of collectives. Errors of them are raised here, while a program is traced."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jaxring.compress.formats import find
from jaxring.compress.primitives import Compression, apply, apply_with_error, key_of
from jaxring.tracing import calls, checks, oracle, primitives
from jaxring.tracing.axes import shown
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.compress.formats import Format
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

_DTYPES = ("float32", "bfloat16", "float16")
_OPERATIONS = (None, "sum", "mean")
# Each leaf of a pytree has its own random bits: their counters are this far apart.
_LEAF_WORDS = 1 << 32


class Compressor:
    """Compresses the leaves of one call's pytree, one after the other."""

    def __init__(self, what: str, form: Format, seed: Any, axes: Axes) -> None:
        self.form, self._what, self._axes = form, what, axes
        self._stochastic = seed is not None
        self._key = key_of(seed if self._stochastic else 0, axes)
        self._leaves = itertools.count()

    def bind(self, x: Any, options: Options) -> Any:
        """The collective of one leaf, of whole blocks as the primitives take them, in the leaf's dtype."""
        compression = self._next(x, options)
        if not self._shorter(x):
            return primitives.apply(self._what, cast_varying(x, self._axes, options), self._axes, options)
        y = apply(self._what, x.astype(jnp.float32), self._key, self._axes, options, compression)
        return y.astype(x.dtype)

    def bind_with_error(self, x: Any, options: Options) -> tuple[Any, Any]:
        """An all-reduce of a float32 leaf, and what this rank should add to its next value."""
        compression = self._next(x, options)
        if not self._shorter(x):
            y = primitives.apply(self._what, cast_varying(x, self._axes, options), self._axes, options)
            return y, jnp.zeros_like(x)
        return apply_with_error(x, self._key, self._axes, options, compression)

    def _next(self, x: Any, options: Options) -> Compression:
        compressible(self._what, x)
        oracle.leave_out(Unchecked.COMPRESSED, self._what, options.site)
        return Compression(self.form, self._stochastic, next(self._leaves) * _LEAF_WORDS)

    def _shorter(self, x: Any) -> bool:
        """Whether fewer bytes are sent than without compression."""
        parts = 1 if self._what == "all_gather" else self._axes.size
        nbytes: int = x.size * x.dtype.itemsize
        return parts * self.form.row_bytes(-(-x.size // parts)) < nbytes


def bind(
    name: str,
    x: Any,
    axes: Axes,
    options: Options,
    compressor: Compressor | None,
    finish: Callable[[Any], Any] = lambda y: y,
) -> Any:
    """The collective of one leaf of whole blocks, compressed where there is a ``compressor``; ``finish`` makes the
    result of it."""
    if compressor is not None:
        return finish(compressor.bind(x, options))
    return calls.bind(name, x, axes, options, finish)


def compressible(what: str, x: Any) -> None:
    """TypeError for a dtype that no format serves."""
    if x.dtype.name not in _DTYPES:
        raise TypeError(
            f"jaxring.{what}: {x.dtype} cannot be compressed, only {', '.join(_DTYPES)}; convert it first, or leave "
            "it out of what is compressed."
        )


def wanted(what: str, compress: Any, seed: Any, axes: Axes, op: str | None, algorithm: str | None) -> Compressor | None:
    """What compresses a call's leaves; None where nothing is to be compressed. Raises ValueError and TypeError."""
    if compress is None:
        if seed is not None:
            raise ValueError(f"jaxring.{what}: seed is for compressed collectives; pass compress, or leave out seed.")
        return None
    form = find(what, compress)
    if op not in _OPERATIONS:
        raise ValueError(
            f"jaxring.{what}: op={op!r} is not served with compress={compress!r}; use 'sum' or 'mean', or leave out "
            "compress."
        )
    if algorithm is not None:
        raise ValueError(
            f"jaxring.{what}: algorithm={algorithm!r} cannot be chosen with compress={compress!r}, which has a "
            "schedule of its own; leave out one of them."
        )
    return Compressor(what, form, None if seed is None else _seed(what, seed), axes)


def _seed(what: str, seed: Any) -> Any:
    value = checks.array(what, seed)
    if value.ndim != 0 or not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"jaxring.{what}: seed must be an integer or an integer scalar, not {shown(seed)}.")
    return value
