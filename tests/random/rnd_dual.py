"""Numbers with derivatives, in float64 NumPy: what the evaluation of random programs computes with.

A value is an array, or a `Dual` of a value and its tangent, one within another for each derivative that is being taken;
the outermost one belongs to the derivative begun last. A tangent of None is zero. Arrays have the axes
``[batch..., device, *shape]``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Dual:
    """A value and its tangent."""

    p: Any
    t: Any


def linear(f: Callable[[Any], Any], x: Any) -> Any:
    """A real-linear function of arrays, which is its own derivative."""
    if isinstance(x, Dual):
        return Dual(linear(f, x.p), None if x.t is None else linear(f, x.t))
    return f(x)


def lift(x: Any, depth: int) -> Any:
    """A constant as a value of that many derivatives."""
    return x if depth == 0 else Dual(lift(x, depth - 1), None)


def depth(x: Any) -> int:
    """How many derivatives there are of it."""
    return 1 + depth(x.p) if isinstance(x, Dual) else 0


def plain(x: Any) -> Any:
    """The array, without derivatives."""
    while isinstance(x, Dual):
        x = x.p
    return x


def _same(xs: list[Any]) -> list[Any]:
    deepest = max(map(depth, xs))
    return [x if depth(x) == deepest else lift(plain(x), deepest) for x in xs]


def jointly(f: Callable[..., Any], *xs: Any) -> Any:
    """A function of arrays that is linear in all of them together: concatenation, selection, sums."""
    xs = tuple(_same(list(xs)))
    if not isinstance(xs[0], Dual):
        return f(*xs)
    tangent = None
    if any(x.t is not None for x in xs):
        tangent = jointly(f, *(zero(x.p) if x.t is None else x.t for x in xs))
    return Dual(jointly(f, *(x.p for x in xs)), tangent)


def zero(x: Any) -> Any:
    """Zeros like it."""
    return lift(np.zeros_like(plain(x)), depth(x))


def add(x: Any, y: Any) -> Any:
    """Elementwise."""
    return jointly(np.add, x, y)


def mul(x: Any, y: Any) -> Any:
    """Elementwise."""
    x, y = _same([x, y])
    if not isinstance(x, Dual):
        return np.multiply(x, y)
    parts = [mul(a, b) for a, b in ((x.p, y.t), (x.t, y.p)) if a is not None and b is not None]
    return Dual(mul(x.p, y.p), None if not parts else parts[0] if len(parts) == 1 else add(*parts))


def scale(x: Any, factor: float) -> Any:
    """By a constant."""
    return linear(lambda a: a * factor, x)


def sin(x: Any) -> Any:
    """Elementwise."""
    return _chain(np.sin, cos, x)


def cos(x: Any) -> Any:
    """Elementwise."""
    return _chain(np.cos, lambda p: scale(sin(p), -1.0), x)


def tanh(x: Any, noisy: Callable[[Any], Any] = lambda a: a) -> Any:
    """Elementwise. The derivative is that of a rounded value, ``noisy``: near 1 little is left of the difference."""

    def derivative(p: Any) -> Any:
        y = linear(noisy, tanh(p, noisy))
        return add(lift(np.ones(()), depth(p)), scale(mul(y, y), -1.0))

    return _chain(np.tanh, derivative, x)


def _chain(f: Callable[[Any], Any], derivative: Callable[[Any], Any], x: Any) -> Any:
    if not isinstance(x, Dual):
        return f(x)
    return Dual(_chain(f, derivative, x.p), None if x.t is None else mul(derivative(x.p), x.t))
