"""The common end of the functions that users call: binds a collective's primitive for each leaf of a pytree."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax

from jaxring.tracing import checks, oracle, wire_dtypes
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.primitives import apply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

Tree = TypeVar("Tree")


class Started(NamedTuple):
    """A result that must not be used before it is done, and the function that then makes the value of it."""

    value: Any
    finish: Callable[[Any], Any]


_starting = contextvars.ContextVar("jaxring_starting", default=False)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Within this context collectives return `Started` in place of arrays."""
    token = _starting.set(True)
    try:
        yield
    finally:
        _starting.reset(token)


def is_starting() -> bool:
    """Whether a collective is to return `Started`."""
    return _starting.get()


def bind(name: str, x: Any, axes: Axes, options: Options, finish: Callable[[Any], Any] = lambda y: y) -> Any:
    """The collective of one leaf of whole blocks; ``finish`` makes the result of it. `Started` within `starting`."""
    started = is_starting()
    options = options._replace(started=started)
    x, back = wire_dtypes.on_the_wire(x)
    x = cast_varying(x, axes, options)
    y = apply(name, x, axes, options)
    oracle.consult(name, x, y, axes, options)
    return Started(y, lambda y: finish(back(y))) if started else finish(back(y))


def each(what: str, function: Callable[[Any], Any], tree: Tree) -> Tree:
    """``function`` of each leaf as an array, which is for an argument of ``what``."""
    result: Tree = jax.tree.map(lambda leaf: function(checks.array(what, leaf)), tree)
    return result
