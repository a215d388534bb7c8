"""Local SGD: groups of ranks train by themselves and exchange what they have learnt now and then (DiLoCo).

docs/concepts/local-sgd.md has the arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from jaxring.collectives import all_reduce
from jaxring.overlap import all_reduce_start
from jaxring.tracing import checks
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.casting import cast_alike, cast_varying

if TYPE_CHECKING:
    from jaxring.tracing.axes import AxisName
    from jaxring.typing import CompressedFormat, Protocol

_WHAT = "optax.diloco"


class DilocoState(NamedTuple):
    """``step``: updates so far, int32. ``inner``: the inner optimiser's state, a leading axis of 1 on each array.

    ``outer``: the outer optimiser's state of each fragment, on the leading axis. ``anchor``: for each parameter of n
    elements what the groups agreed on last, float32 (fragments, ceil(n / fragments)); float64 for one of float64.
    """

    step: jax.Array
    inner: Any
    outer: Any
    anchor: Any


def diloco(
    axis_name: AxisName,
    inner: optax.GradientTransformation,
    *,
    every: int,
    fragments: int | None = None,
    outer: optax.GradientTransformation | None = None,
    compress: CompressedFormat | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> optax.GradientTransformation:
    """DiLoCo: each rank of ``axis_name`` trains by ``inner``; every parameter is exchanged once in ``every`` steps.

    A rank of ``axis_name`` is a group that trains by itself: its gradients come from its own data (reduced over other
    axes before, if it has several devices), and its parameters differ from those of other groups. In each step, or with
    fewer fragments in every ``every // fragments``-th, the groups exchange one fragment, in turn: how far each has come
    from the values of the last exchange. The mean over the groups is the gradient of the optimiser ``outer``, whose
    step from those values all groups take. The exchange depends on the parameters alone, so that it can travel while
    gradients are computed.

    Call it inside `jax.shard_map`: ``init`` on the parameters, of any shapes and real floating dtypes, with which all
    groups begin, and ``update`` with a group's own ones, which cross the border of `jax.shard_map` as what differs
    along ``axis_name``. The state crosses it by `state_specs`, whose ``sharded_over`` names further mesh axes over
    which the parameters are sharded. The arithmetic is in float32, and in float64 for parameters of float64.

    Args:
        axis_name: Name of a mesh axis, or a tuple of names; the rank is the row-major index over them.
        inner: The optimiser of a group's own steps.
        every: In how many steps every parameter is exchanged once.
        fragments: Into how many parts of equal size the parameters are cut; ``every`` is a multiple of it. None:
            ``every``.
        outer: The optimiser of the exchange. None: SGD with rate 0.7 and Nesterov momentum 0.9.
        compress: The format of the exchange: "int8", "fp8_e4m3", "bf16" or "int4". None: not compressed.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        An `optax.GradientTransformation`.

    Raises:
        ValueError: For ``every`` and ``fragments`` that do not fit; from its update for a call without parameters, and
            for an option that is not served.
        TypeError: From ``init``, for parameters of integers or complex numbers.
        NameError: From its update, at trace time: ``axis_name`` is not bound there.

    Examples:
        With an exchange of each parameter in 32 steps:

            optimizer = jaxring.optax.diloco("group", optax.adamw(3e-3), every=32)
    """
    every = checks.integer(f"jaxring.{_WHAT}: every", every)
    count = every if fragments is None else checks.integer(f"jaxring.{_WHAT}: fragments", fragments)
    if every < 1 or count < 1 or every % count:
        raise ValueError(
            f"jaxring.{_WHAT}: every={every} must be a multiple of fragments={count}, and both at least 1; each of the "
            "fragments is exchanged once in so many steps."
        )
    spacing = every // count
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer

    def init(params: Any) -> DilocoState:
        for path, leaf in jax.tree.leaves_with_path(params):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise TypeError(
                    f"jaxring.{_WHAT}: the parameter params{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; only "
                    "real floating-point numbers are exchanged. Keep others out of the optimiser, for example by "
                    "optax.masked, or as arrays of real and imaginary parts."
                )
        anchor = jax.tree.map(lambda p: _fragments(p, count), params)
        mine = jax.tree.map(lambda x: jnp.asarray(x)[None], inner.init(params))
        return DilocoState(jnp.zeros((), jnp.int32), mine, jax.vmap(outer.init)(anchor), anchor)

    def update(updates: Any, state: DilocoState, params: Any = None) -> tuple[Any, DilocoState]:
        if params is None:
            raise ValueError(f"jaxring.{_WHAT}: the update needs the parameters: update(updates, state, params).")
        axes = resolve(_WHAT, axis_name)
        options = checks.options("all_reduce", axes, "mean", None, protocol, timeout, call_site())
        choice: dict[str, Any] = {"compress": compress, "protocol": protocol, "timeout": timeout}
        k = state.step // spacing % count
        before = jax.tree.map(lambda p: _fragments(p, count)[k], params)
        since = jax.tree.map(lambda a: a[k], state.anchor)
        delta = jax.tree.map(lambda a, p: cast_varying(a, axes, options) - p, since, before)
        if compress is not None:
            delta = jax.tree.map(lambda d: d.astype(jnp.float32), delta)
        vectors = _joined(delta)

        def outer_step(means: Any) -> tuple[Any, Any, Any]:
            """What a group's fragment is corrected by to become the common one, and the common state after it."""
            gradients = jax.tree.map(lambda mean, a: mean.astype(a.dtype), _parted(means, delta), since)
            step, after = outer.update(gradients, jax.tree.map(lambda s: s[k], state.outer), since)
            common = optax.apply_updates(since, step)
            correction = jax.tree.map(lambda c, p: cast_varying(c, axes, options) - p, common, before)
            return correction, *(
                jax.tree.map(lambda whole, part: whole.at[k].set(part), *pair)
                for pair in ((state.outer, after), (state.anchor, common))
            )

        def no_exchange() -> tuple[Any, Any, Any]:
            correction = jax.tree.map(lambda p: cast_alike([jnp.zeros(p.shape, p.dtype), p], axes, options)[0], before)
            return correction, state.outer, state.anchor

        def inner_step() -> tuple[Any, Any]:
            return inner.update(updates, jax.tree.map(lambda x: x[0], state.inner), params)  # type: ignore[no-any-return]

        if spacing == 1:
            # The gradients and the inner step are computed while the exchange travels.
            exchange = all_reduce_start(vectors, axis_name, "mean", **choice)
            means, own, mine = exchange.done(*inner_step())
            correction, after, anchor = outer_step(means)
        else:
            correction, after, anchor = jax.lax.cond(
                state.step % spacing == 0,
                lambda: outer_step(all_reduce(vectors, axis_name, "mean", **choice)),
                no_exchange,
            )
            own, mine = inner_step()
        corrected = jax.tree.map(lambda u, c: _with_fragment(u, c, k, count), own, correction)
        return corrected, DilocoState(state.step + 1, jax.tree.map(lambda x: x[None], mine), after, anchor)

    return optax.GradientTransformation(init, update)


def _fragments(x: Any, count: int) -> Any:
    """(count, n) of at least float32: the elements in order, zeros behind them."""
    length = -(-x.size // count)
    flat = jnp.ravel(x).astype(jnp.float32 if x.dtype.itemsize < 4 else x.dtype)
    return jnp.pad(flat, (0, count * length - x.size)).reshape(count, length)


def _with_fragment(update: Any, correction: Any, k: Any, count: int) -> Any:
    """``update`` with ``correction`` added to its fragment ``k``."""
    whole = _fragments(update, count)
    whole = whole.astype(jnp.promote_types(whole.dtype, correction.dtype)).at[k].add(correction)
    return jnp.reshape(whole.reshape(-1)[: update.size], update.shape).astype(update.dtype)


def _joined(tree: Any) -> dict[str, Any]:
    """One vector of all leaves of a dtype: fragments of small parameters are smaller still, and travel together."""
    found: dict[str, list[Any]] = {}
    for leaf in jax.tree.leaves(tree):
        found.setdefault(leaf.dtype.name, []).append(leaf)
    return {name: jnp.concatenate(leaves) for name, leaves in found.items()}


def _parted(vectors: dict[str, Any], like: Any) -> Any:
    """Such vectors as a tree of vectors."""
    leaves, shape = jax.tree.flatten(like)
    parts, at = [], dict.fromkeys(vectors, 0)
    for leaf in leaves:
        name = leaf.dtype.name
        parts.append(vectors[name][at[name] : at[name] + leaf.size])
        at[name] += leaf.size
    return jax.tree.unflatten(shape, parts)
