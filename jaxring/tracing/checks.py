"""Checks of arguments at trace time. Each error says what to do."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring.plan import dtypes, user
from jaxring.plan.algorithms import ALGORITHMS, serving
from jaxring.plan.collectives import CALLS
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.protocols import PROTOCOLS
from jaxring.plan.schedule import Spec
from jaxring.settings import settings
from jaxring.tracing.axes import shown
from jaxring.tracing.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import SupportsIndex

    from jaxring.tracing.axes import Axes

# The longest deadline, as for JAXRING_TIMEOUT: the engine's clock counts nanoseconds in 64 bits.
MOST_SECONDS = 1e6


def options(
    what: str,
    axes: Axes,
    op: str | None,
    algorithm: str | None,
    protocol: str | None,
    timeout: float | None,
    site: str,
) -> Options:
    """The checked options of a call. ValueError names the choices."""
    configured = settings()
    collective = CALLS[what].schedules_of
    if op is not None and not _one_of(dtypes.REDUCE_OPS, op):
        raise ValueError(f"jaxring.{what}: unknown op {op!r}; use one of {', '.join(sorted(dtypes.REDUCE_OPS))}.")
    if algorithm is not None and not isinstance(algorithm, str):
        raise ValueError(f"jaxring.{what}: algorithm must be one's name, not {shown(algorithm)}.")
    own = user.find(algorithm)
    if own is not None:
        if own.collective != collective:
            raise ValueError(f"jaxring.{what}: algorithm {algorithm!r} was registered for {own.collective}.")
        user.build_user(Spec(collective, axes.size, own.name))  # verifies it
    elif algorithm is not None and algorithm not in _possible(collective):
        if algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise ValueError(f"jaxring.{what}: unknown algorithm {algorithm!r}; use one of {known}.")
        raise ValueError(
            f"jaxring.{what}: algorithm {algorithm!r} does not serve it; use one of {', '.join(serving(collective))}."
        )
    if protocol is not None and not _one_of(PROTOCOLS, protocol):
        raise ValueError(f"jaxring.{what}: unknown protocol {protocol!r}; use one of {', '.join(PROTOCOLS)}.")
    return Options(
        op=op,
        algorithm=algorithm,
        protocol=protocol,
        timeout=configured.timeout if timeout is None else seconds(f"jaxring.{what}", timeout),
        site=site,
    )


def _one_of(names: Iterable[str], value: Any) -> bool:
    return isinstance(value, str) and value in names


def _possible(collective: str) -> tuple[str, ...]:
    """Algorithms that may serve it; whether GPUs' copy engines or switches do is known when the program runs."""
    on_gpus = ((copy_engine.NAME, copy_engine.SERVED), (nvls.NAME, nvls.SERVED))
    return (*serving(collective), *(name for name, served in on_gpus if collective in served))


def fitting(algorithm: str | None, collective: str) -> str | None:
    """``algorithm`` if it serves ``collective``, else None: the tuner chooses."""
    own = user.find(algorithm)
    fits = algorithm in _possible(collective) if own is None else own.collective == collective
    return algorithm if fits else None


def array(what: str, leaf: Any) -> Any:
    """A leaf of a pytree as an array. Raises the TypeErrors that JAX raises for a value that is no array."""
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"jaxring.{what}: {shown(leaf)} cannot be made an array ({str(error).splitlines()[0]}); pass arrays, "
            "numbers, or pytrees of these."
        ) from None


def movable(what: str, x: Any) -> None:
    """TypeError for a dtype that the engine does not know."""
    try:
        dtypes.dtype_code(x.dtype)
    except TypeError as error:
        raise TypeError(f"jaxring.{what}: {error}.") from None


def reducible(what: str, x: Any, op: str) -> Any:
    """``x``, as int32 where bool is summed. TypeError where ``op`` is not defined for the dtype."""
    if x.dtype == jnp.bool_ and op == "sum":
        x = x.astype(jnp.int32)
    try:
        dtypes.check(op, x.dtype)
    except TypeError as error:
        raise TypeError(f"jaxring.{what}: {error}.") from None
    return x


def dimension(what: str, name: str, value: int, ndim: int) -> int:
    """A dimension's number, counted from the front."""
    value = integer(f"jaxring.{what}: {name}", value)
    if not -ndim <= value < ndim:
        raise ValueError(f"jaxring.{what}: {name}={value} is no dimension of a value with {ndim} dimensions.")
    return value % ndim


def integer(what: str, value: SupportsIndex) -> int:
    """``value``, of any integer type, as Python's int. TypeError for other types, such as floats and strings."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}.") from None


def seconds(what: str, timeout: Any) -> float:
    """A deadline in seconds. TypeError for a value that is no number, ValueError for one out of range."""
    if not hasattr(timeout, "__float__") and not hasattr(timeout, "__index__"):
        raise TypeError(f"{what}: timeout must be a number of seconds, not {timeout!r}.")
    value = float(timeout)
    if not 0 < value <= MOST_SECONDS:
        raise ValueError(
            f"{what}: timeout must be a positive number of seconds, not {timeout!r}; at most {MOST_SECONDS:g}."
        )
    return value


def root(what: str, value: int, axes: Axes) -> int:
    """A root's rank."""
    rank = integer(f"jaxring.{what}: root", value)
    if not 0 <= rank < axes.size:
        raise ValueError(f"jaxring.{what}: root={rank} is no rank of axis {axes}, which has ranks 0..{axes.size - 1}.")
    return rank


def permutation(what: str, perm: Sequence[tuple[int, int]], axes: Axes) -> tuple[tuple[int, int], ...]:
    """(source, target) pairs in which no rank is twice a source or twice a target."""
    return pairs_among(f"jaxring.{what}", perm, axes.size, f"axis {axes} has")


def pairs_among(what: str, perm: Sequence[tuple[int, int]], size: int, there: str) -> tuple[tuple[int, int], ...]:
    """As `permutation`, among ``size`` ranks; ``there`` names in the errors what they are ranks of."""
    pairs = tuple((integer(f"{what}: a source", s), integer(f"{what}: a target", t)) for s, t in perm)
    for name, ranks in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        for rank in ranks:
            if not 0 <= rank < size:
                raise ValueError(f"{what}: perm names {name} {rank}, but {there} ranks 0..{size - 1}.")
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        if twice:
            raise ValueError(
                f"{what}: perm repeats {name} {twice[0]}; each rank may be a {name} once. "
                "Use broadcast or all_gather to reach several ranks."
            )
    return tuple(sorted(pairs))


def ragged(operand: Any, output: Any, vectors: Sequence[Any], axes: Axes) -> None:
    """Shapes and dtypes of ragged_all_to_all's arguments."""
    what = "ragged_all_to_all"
    if operand.ndim < 1 or operand.dtype != output.dtype or operand.shape[1:] != output.shape[1:]:
        raise ValueError(
            f"jaxring.{what}: operand {operand.dtype}{operand.shape} and output {output.dtype}{output.shape} must "
            "agree in dtype and in all dimensions but the first."
        )
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    for name, vector in zip(names, vectors, strict=True):
        if vector.shape != (axes.size,) or not jnp.issubdtype(vector.dtype, jnp.integer):
            raise ValueError(
                f"jaxring.{what}: {name} must be an integer vector with an entry for each of the {axes.size} ranks, "
                f"not {vector.dtype}{vector.shape}."
            )
