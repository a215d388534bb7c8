"""Gradients that are reduced while the rest of the backward pass is computed.

The gradient function is traced to its equations, which lie in the order of the backward pass. A bucket's all-reduce is
started behind the equation that computes its last gradient. A bucket is one fused call, whose operands are the
gradients themselves: nothing is copied into a buffer, and each result takes its gradient's memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxring import collectives
from jaxring.overlap import Handle
from jaxring.settings import settings
from jaxring.tracing import checks
from jaxring.tracing.axes import resolve
from jaxring.tracing.calls import starting
from jaxring.tracing.casting import pcast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.tracing.axes import AxisName
    from jaxring.typing import Op, Protocol

__all__ = ["overlap_gradients"]

Tree = TypeVar("Tree")

_WHAT = "overlap_gradients"


def overlap_gradients(
    grad_fn: Callable[..., Tree],
    axis_name: AxisName,
    *,
    op: Op = "mean",
    bucket_bytes: int | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Callable[..., Tree]:
    """``grad_fn``, with every array that it returns reduced over ``axis_name`` as soon as it has been computed.

    The arrays are put into buckets in the order in which the backward pass computes them. A bucket starts when its last
    array has been computed and the bucket before it has ended: so the order is the same in every run and on every rank,
    and each bucket has the links to itself.

    What `jax.lax.scan` computes is there when the scan ends, the gradients of all its layers at once: nothing overlaps
    with the scan itself. docs/concepts/overlap.md says what XLA does on each platform.

    Args:
        grad_fn: `jax.grad` or `jax.value_and_grad` of a rank's own loss, without a reduction in it.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        bucket_bytes: A bucket is full when it has so many bytes or more, 1 at least. None: JAXRING_FUSION_BYTES, beyond
            which a bucket is several calls.
        algorithm: "ring", "tree", "halving_doubling", "oneshot", "deterministic" and others, or the name of one of your
            own (`jaxring.register_algorithm`). None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        A function of the same arguments, for use inside `jax.shard_map`, that gives what
        ``jaxring.all_reduce(grad_fn(...), axis_name, op)`` gives, with the same bits.

    Raises:
        TypeError: Where ``bucket_bytes`` is no integer. Its function: as `jaxring.all_reduce`.
        ValueError: Where ``bucket_bytes`` is below 1. Its function: as `jaxring.all_reduce`.
        NameError: From its function, at trace time: ``axis_name`` is not bound there.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            step = jaxring.overlap_gradients(jax.value_and_grad(loss), "data")
            value, gradients = step(params, batch)
    """
    if bucket_bytes is not None and checks.integer(f"jaxring.{_WHAT}: bucket_bytes", bucket_bytes) < 1:
        raise ValueError(f"jaxring.{_WHAT}: bucket_bytes={bucket_bytes} must be 1 or more.")
    choice: dict[str, Any] = {"algorithm": algorithm, "protocol": protocol, "timeout": timeout}

    @functools.wraps(grad_fn)
    def run(*args: Any, **kwargs: Any) -> Tree:
        resolve(_WHAT, axis_name)
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
        # Copies of each rank's own: the gradients by them are of the rank's own loss, and the sum is left to us.
        arrays = [_own(leaves[i], axis_name, choice) for i in places]

        def of_arrays(*arrays: Any) -> Tree:
            given = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                given[i] = array
            args, kwargs = jax.tree.unflatten(tree, given)
            return grad_fn(*args, **kwargs)

        traced, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        # Inlined, so that what a jitted part computes counts as computed before that part ends.
        flat = jax.make_jaxpr(functools.partial(_inlined, traced))(*arrays)
        limit = settings().fusion_bytes if bucket_bytes is None else bucket_bytes
        reduced = _reduced(flat, arrays, max(1, limit), lambda x: collectives.all_reduce(x, axis_name, op, **choice))
        result: Tree = jax.tree.unflatten(jax.tree.structure(shape), reduced)
        return result

    return run


def _own(leaf: Any, axis_name: AxisName, choice: dict[str, Any]) -> Any:
    extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return leaf if extended else pcast(leaf, axis_name, **choice)


class Bucket(NamedTuple):
    """Numbers of results, and how many equations have to be computed for all of them."""

    results: tuple[int, ...]
    ready: int


def buckets(jaxpr: Any, limit: int) -> list[Bucket]:
    """The results of a jaxpr in buckets of ``limit`` bytes or more, in the order in which they are computed."""
    made = {var: i + 1 for i, equation in enumerate(jaxpr.eqns) for var in equation.outvars}
    ready = [0 if isinstance(var, jex.Literal) else made.get(var, 0) for var in jaxpr.outvars]
    found: list[Bucket] = []
    results: list[int] = []
    nbytes = 0
    for i in sorted(range(len(ready)), key=lambda i: (ready[i], i)):
        results.append(i)
        nbytes += jaxpr.outvars[i].aval.size * jaxpr.outvars[i].aval.dtype.itemsize
        if nbytes >= limit:
            found.append(Bucket(tuple(results), ready[i]))
            results, nbytes = [], 0
    if results:
        found.append(Bucket(tuple(results), ready[results[-1]]))
    return found


def _reduced(
    closed: jex.ClosedJaxpr, arrays: Sequence[Any], limit: int, all_reduce: Callable[[list[Any]], Any]
) -> list[Any]:
    """The results, each bucket's all-reduce started where the bucket is ready."""
    jaxpr = closed.jaxpr
    environment = _Environment(jaxpr, closed.consts, arrays)
    reduced: list[Any] = [None] * len(jaxpr.outvars)
    last: tuple[Bucket, Handle[Any]] | None = None
    computed = 0

    def finish_last_bucket(following: list[Any]) -> list[Any]:
        """The operands of the next bucket, which wait for the last one."""
        if last is None:
            return following
        values, *following = last[1].done(*following) if following else (last[1].done(),)
        for i, value in zip(last[0].results, values, strict=True):
            reduced[i] = value
        return following

    for bucket in buckets(jaxpr, limit):
        environment.compute(jaxpr.eqns[computed : bucket.ready])
        computed = bucket.ready
        operands = finish_last_bucket([environment.value(jaxpr.outvars[i]) for i in bucket.results])
        with starting():
            # A result has its operand's memory, so no operand has to be kept.
            last = bucket, Handle(all_reduce(operands))
    finish_last_bucket([])
    return reduced


class _Environment:
    """The values of a jaxpr's variables, as far as they have been computed."""

    def __init__(self, jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any]) -> None:
        self._jaxpr = jaxpr
        self._values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arrays], strict=True))

    def value(self, var: Any) -> Any:
        return var.val if isinstance(var, jex.Literal) else self._values[var]

    def set(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        self._values.update(zip(variables, values, strict=True))

    def compute(self, equations: Sequence[Any]) -> None:
        """Evaluates these equations, which JAX then names in its reports by their own places in the source."""
        made = [var for equation in equations for var in equation.outvars if not isinstance(var, jex.DropVar)]
        own = set(made)
        used = {
            var: None
            for equation in equations
            for var in equation.invars
            if not isinstance(var, jex.Literal) and var not in own
        }
        part = self._jaxpr.replace(constvars=[], invars=list(used), outvars=made, eqns=list(equations))
        values = jex.jaxpr_as_fun(jex.ClosedJaxpr(part, ()))(*map(self.value, used))
        self.set(made, values)


def _inlined(closed: jex.ClosedJaxpr, *arrays: Any) -> list[Any]:
    """The results of a jaxpr, with its jitted parts evaluated where they are called."""
    jaxpr = closed.jaxpr
    environment = _Environment(jaxpr, closed.consts, arrays)
    for equation in jaxpr.eqns:
        if equation.primitive.name not in ("jit", "pjit"):
            environment.compute([equation])
            continue
        results = _inlined(equation.params["jaxpr"], *map(environment.value, equation.invars))
        environment.set(equation.outvars, results)
    return list(map(environment.value, jaxpr.outvars))
