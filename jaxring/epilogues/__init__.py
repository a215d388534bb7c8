"""Functions that a reduction applies to its complete values before it spreads them: the argument ``epilogue``.

``jaxring.all_reduce(x, "data", epilogue=jaxring.epilogues.scale(0.125))`` is ``0.125 * jaxring.all_reduce(x, "data")``
without a pass over the result, rounded once. docs/concepts/epilogues.md says what it saves, and how exact it is.

Parameters are numbers or scalar arrays of floats or integers, which may be traced: TypeError for others. They do not
change the dtype of the result, which is the value's, but for `cast`, `sgd` and `adam`. Functions follow each other by
`Epilogue.then`: cast, sgd and adam can only come last. Values are float8_e4m3fn, float8_e5m2, bfloat16, float16 or
float32, which are computed in float32; or float64. The call raises TypeError for other dtypes, and where only one of
two is float64; ValueError for ``compress``, for sgd and adam in an all_reduce, for operands of another structure or
shape than the result, for parameters of an all_reduce that vary over its axes by their type, and for an algorithm that
does not complete every result where it stays, if the functions have operands.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxring.epilogues.functions import FUNCTIONS, Function

if TYPE_CHECKING:
    from jax.typing import ArrayLike, DTypeLike

__all__ = ["Epilogue", "adam", "cast", "clip", "scale", "sgd"]


@dataclasses.dataclass(frozen=True, eq=False)
class Epilogue:
    """What a reduction applies to its complete values: made by the functions of this module, passed as ``epilogue``.

    ``functions`` are applied one after the other. ``parameters`` are theirs, in order, and so are ``further``: pytrees
    of operands and states, with the structure of the reduction's result. ``dtype``: the result's, where that changes.
    """

    functions: tuple[Function, ...]
    parameters: tuple[ArrayLike, ...] = ()
    further: tuple[Any, ...] = ()
    dtype: np.dtype[Any] | None = None

    def then(self, after: Epilogue) -> Epilogue:
        """This, and ``after`` applied to what it gives.

        Args:
            after: The epilogue that follows.

        Returns:
            The epilogue of both.

        Raises:
            ValueError: If this is a cast or an optimiser's step.
            TypeError: Where ``after`` is no `Epilogue`.

        Examples:
            A mean over 8 ranks, clipped:

                jaxring.epilogues.scale(1 / 8).then(jaxring.epilogues.clip(-1.0, 1.0))
        """
        if not isinstance(after, Epilogue):
            raise TypeError(f"jaxring.epilogues: then takes an epilogue, such as scale(0.5), not {after!r}.")
        last = self.functions[-1]
        if self.dtype is not None or last.further:
            raise ValueError(
                f"jaxring.epilogues: nothing can follow {last.name}, so make it the last: "
                f"{after.functions[0].name}(...).then({last.name}(...))."
            )
        return Epilogue(
            self.functions + after.functions,
            self.parameters + after.parameters,
            after.further,
            after.dtype,
        )


def scale(factor: ArrayLike) -> Epilogue:
    """Multiplies by ``factor``. The dtype stays, also where ``factor`` has a wider one.

    Args:
        factor: A number or a scalar array.

    Returns:
        An epilogue, for the argument ``epilogue`` of `jaxring.all_reduce` and `jaxring.reduce_scatter`.

    Raises:
        TypeError: For a parameter that is no number and no scalar array of floats or integers.
    """
    return Epilogue((FUNCTIONS["scale"],), (_scalar("scale", "factor", factor),))


def clip(low: ArrayLike, high: ArrayLike) -> Epilogue:
    """Clips each element to ``low`` and ``high``, as `jax.numpy.clip`: NaN stays NaN, and the dtype stays.

    Args:
        low: A number or a scalar array: the least value.
        high: A number or a scalar array: the greatest value.

    Returns:
        An epilogue, for the argument ``epilogue`` of `jaxring.all_reduce` and `jaxring.reduce_scatter`.

    Raises:
        ValueError: Where ``low`` is greater than ``high``, if both are known while the program is traced.
        TypeError: For a parameter that is no number and no scalar array of floats or integers.
    """
    bounds = _scalar("clip", "low", low), _scalar("clip", "high", high)
    least, most = map(_known, bounds)
    if least is not None and most is not None and least > most:
        raise ValueError(f"jaxring.epilogues.clip: low={low} is greater than high={high}; exchange them.")
    return Epilogue((FUNCTIONS["clip"],), bounds)


def cast(dtype: DTypeLike) -> Epilogue:
    """Rounds to ``dtype`` once, from the accumulators: what is spread has that many bytes.

    Float dtypes become each other, except float64, which stays float64.

    Args:
        dtype: The dtype of the result.

    Returns:
        An epilogue, for the argument ``epilogue`` of `jaxring.all_reduce` and `jaxring.reduce_scatter`.

    Raises:
        TypeError: For what is no dtype; the call with the epilogue raises it for a dtype that is no float's, or where
            only one of two is float64.
    """
    return Epilogue((FUNCTIONS["cast"],), dtype=np.dtype(dtype))


def sgd(
    params: Any,
    learning_rate: ArrayLike,
    *,
    momentum: ArrayLike | None = None,
    trace: Any = None,
    nesterov: bool = False,
    weight_decay: ArrayLike = 0.0,
) -> Epilogue:
    """A step of stochastic gradient descent, for `jaxring.reduce_scatter` of gradients.

    As `optax.sgd`, with `optax.add_decayed_weights` before it. The results have the dtypes of ``params`` and ``trace``,
    which may be wider than the gradients'.

    Args:
        params: A pytree with the shapes of the reduced gradients' shards.
        learning_rate: A number or a scalar array.
        momentum: A number or a scalar array. None: no momentum.
        trace: With ``momentum``: the pytree of the last step, zeros at first.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: What times ``params`` is added to the gradient: a number or a scalar array.

    Returns:
        An epilogue, for the argument ``epilogue`` of `jaxring.reduce_scatter`, whose result is the new ``params``, or
        with ``momentum`` ``(params, trace)``.

    Raises:
        ValueError: For ``momentum`` without ``trace``, and for ``trace`` or ``nesterov`` without ``momentum``.
        TypeError: For a parameter that is no number and no scalar array of floats or integers.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            step = jaxring.epilogues.sgd(shards, 0.1, momentum=0.9, trace=trace)
            shards, trace = jaxring.reduce_scatter(gradients, "data", "mean", tiled=True, epilogue=step)
    """
    rate, decay = _scalar("sgd", "learning_rate", learning_rate), _scalar("sgd", "weight_decay", weight_decay)
    if momentum is None:
        if trace is not None or nesterov:
            raise ValueError("jaxring.epilogues.sgd: trace and nesterov are for momentum; pass it, or leave them out.")
        return Epilogue((FUNCTIONS["sgd"],), (rate, decay), (params,))
    if trace is None:
        raise ValueError(
            "jaxring.epilogues.sgd: momentum needs trace, the second result of the last step; at first "
            "jax.tree.map(jnp.zeros_like, params)."
        )
    parameters = (rate, decay, _scalar("sgd", "momentum", momentum), float(nesterov))
    return Epilogue((FUNCTIONS["momentum"],), parameters, (params, trace))


def adam(
    params: Any,
    mu: Any,
    nu: Any,
    step: ArrayLike,
    learning_rate: ArrayLike,
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    weight_decay: ArrayLike = 0.0,
) -> Epilogue:
    """A step of Adam, for `jaxring.reduce_scatter` of gradients.

    As `optax.adamw` (`optax.adam` for ``weight_decay=0``) and `optax.apply_updates`. The results have the dtypes of
    their operands, which may be wider than the gradients'.

    Args:
        params: A pytree with the shapes of the reduced gradients' shards.
        mu: The first moments, a pytree with the shapes of the reduced gradients' shards, zeros at first.
        nu: The second moments, a pytree with the shapes of the reduced gradients' shards, zeros at first.
        step: The number of this step, 1 at first: a number or a scalar array. A traced 0 divides by zero, and gives
            NaN.
        learning_rate: A number or a scalar array.
        b1: The decay of the first moments, in [0, 1).
        b2: The decay of the second moments, in [0, 1).
        eps: What is added to the root of the second moments.
        weight_decay: What times ``params`` is taken off, times the learning rate.

    Returns:
        An epilogue, for the argument ``epilogue`` of `jaxring.reduce_scatter`, whose result is the new ``(params, mu,
        nu)``.

    Raises:
        ValueError: For a ``step`` below 1, and for ``b1`` or ``b2`` outside of [0, 1), if they are known while the
            program is traced.
        TypeError: For a parameter that is no number and no scalar array of floats or integers.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            step = jaxring.epilogues.adam(shards, mu, nu, count, 3e-4)
            shards, mu, nu = jaxring.reduce_scatter(gradients, "data", "mean", tiled=True, epilogue=step)
    """
    names = ("learning_rate", "weight_decay", "b1", "b2", "eps", "step")
    given = (learning_rate, weight_decay, b1, b2, eps, step)
    rate, decay, first, second, epsilon, number = (
        _scalar("adam", name, value) for name, value in zip(names, given, strict=True)
    )
    if (known := _known(number)) is not None and not known >= 1:
        raise ValueError(f"jaxring.epilogues.adam: step={number} must be 1 at the first step.")
    for name, decays in (("b1", first), ("b2", second)):
        if (known := _known(decays)) is not None and not 0 <= known < 1:
            raise ValueError(f"jaxring.epilogues.adam: {name}={decays} must be in [0, 1), such as 0.9.")
    ones = [1 - decays for decays in (first, second)]
    unbias = [1 / (1 - decays**number) for decays in (first, second)]
    parameters = (rate, decay, first, ones[0], second, ones[1], *unbias, epsilon)
    return Epilogue((FUNCTIONS["adam"],), parameters, (params, mu, nu))


def _scalar(what: str, name: str, value: Any) -> Any:
    """``value`` if it is a number or a real scalar. TypeError otherwise."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not hasattr(value, "dtype") or getattr(value, "shape", None) != ():
        raise TypeError(f"jaxring.epilogues.{what}: {name} must be a number or a scalar array, not {_shown(value)}.")
    if not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
        raise TypeError(f"jaxring.epilogues.{what}: {name} must be real, not {value.dtype}.")
    return value


def _known(value: Any) -> float | None:
    """The value of a parameter that can be looked at while the program is traced, else None."""
    return None if isinstance(value, jax.core.Tracer) else float(np.asarray(value))


def _shown(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)[:80]
