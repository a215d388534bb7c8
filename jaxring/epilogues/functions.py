"""The functions that an epilogue may apply: a row for each, as the engine has it (``ffi/reduce/functions.h``).

Each row says the function in JAX, too. It is computed so where there is nothing to send, for derivatives, and over axes
of `jax.vmap`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function:
    """One function.

    ``apply(value, parameters, further)`` returns the new value and the new states, all in the accumulators' dtype.
    ``parameters``: names of numbers that hold for all elements. ``operands`` and ``states``: names of further values of
    each element; ``further`` has the operands, then the states. ``linear``: in the value.
    """

    name: str
    apply: Callable[[Any, Sequence[Any], Sequence[Any]], tuple[Any, tuple[Any, ...]]]
    parameters: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    linear: bool = False

    @property
    def further(self) -> int:
        """How many operands and states it has."""
        return len(self.operands) + len(self.states)


def _cast(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    del p, further
    return value, ()


def _scale(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    del further
    return value * p[0], ()


def _clip(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    del further
    return jnp.minimum(jnp.maximum(value, p[0]), p[1]), ()


def _sgd(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    rate, decay = p
    (params,) = further
    return params - rate * (value + decay * params), ()


def _momentum(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    rate, decay, momentum, nesterov = p
    params, trace = further
    gradient = value + decay * params
    trace = gradient + momentum * trace
    return params - rate * jnp.where(nesterov != 0, gradient + momentum * trace, trace), (trace,)


def _adam(value: Any, p: Sequence[Any], further: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    rate, decay, b1, rest1, b2, rest2, unbias1, unbias2, eps = p
    params, mu, nu = further
    mu = rest1 * value + b1 * mu
    nu = rest2 * (value * value) + b2 * nu
    update = (mu * unbias1) / (jnp.sqrt(nu * unbias2) + eps)
    return params - rate * (update + decay * params), (mu, nu)


FUNCTIONS: dict[str, Function] = {
    each.name: each
    for each in (
        Function(name="cast", apply=_cast, linear=True),
        Function(name="scale", apply=_scale, parameters=("factor",), linear=True),
        Function(name="clip", apply=_clip, parameters=("low", "high")),
        Function(name="sgd", apply=_sgd, parameters=("learning_rate", "weight_decay"), operands=("params",)),
        Function(
            name="momentum",
            apply=_momentum,
            parameters=("learning_rate", "weight_decay", "momentum", "nesterov"),
            operands=("params",),
            states=("trace",),
        ),
        Function(
            name="adam",
            apply=_adam,
            parameters=(
                *("learning_rate", "weight_decay", "b1", "1 - b1", "b2", "1 - b2"),
                *("1 / (1 - b1**step)", "1 / (1 - b2**step)", "eps"),
            ),
            operands=("params",),
            states=("mu", "nu"),
        ),
    )
}
