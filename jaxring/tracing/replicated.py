"""Warns of reductions of a value that is the same on all ranks: most often a gradient that JAX has summed already.

With ``check_vma=True``, `jax.grad` returns the gradient of replicated parameters summed over the ranks. The mean over
the ranks, which other libraries ask for, is then that sum: n times the wanted value. The operand's type shows this, so
the caller gets a warning, once for each line of the program.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring import _compat
from jaxring.errors import ReplicatedOperandWarning
from jaxring.tracing.axes import caller

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxring.tracing.axes import Axes

# The reductions that change equal values, or that make no sense for them. Minimum, maximum, and, or return the value.
_SUSPECT = {
    "sum": "their sum is a multiple of it",
    "mean": "their mean is that value again",
    "prod": "their product is a power of it",
}
_told: set[tuple[str, int]] = set()


def warn(what: str, tree: Any, axes: Axes, op: str) -> None:
    """Warns if leaves of ``tree`` are known to be the same along an axis over which they are to be reduced.

    Numbers and arrays that are no part of the trace are meant so (`all_reduce(1, axis)` counts ranks), and integers are
    no gradients. Nothing is known with ``check_vma=False`` and over axes of `jax.vmap`.
    """
    if op not in _SUSPECT or axes.size == 1 or not _compat.tracks_varying():
        return
    ranks = dict(axes.mesh)
    names = [name for name in axes.mesh_names if ranks[name] > 1]
    equal = [(leaf, [name for name in names if name not in _compat.varying(leaf)]) for leaf in _traced(tree)]
    equal = [(leaf, over) for leaf, over in equal if over]
    place = caller() if equal else None
    if place is None or place in _told:
        return
    leaf, over = equal[0]
    others = f" (and {len(equal) - 1} more)" if len(equal) > 1 else ""
    over_text = _text(over)
    warnings.warn_explicit(
        f"jaxring.{what}, op={op!r}, over {axes}: {jax.typeof(leaf).str_short()}{others} is the same on all ranks of "
        f"{over_text} by its type, and {_SUSPECT[op]}. If it is a gradient of replicated parameters, JAX has summed it "
        f"over {over_text} already (check_vma=True). Use jaxring.data_parallel.value_and_grad(loss, {over_text}), or "
        f"differentiate by jaxring.pcast(parameters, {over_text}). If equal values are meant, pass "
        "assume_replicated=True.",
        ReplicatedOperandWarning,
        *place,
    )
    _told.add(place)


def _traced(tree: Any) -> list[Any]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.core.Tracer)]
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _text(names: list[Hashable]) -> str:
    return repr(names[0]) if len(names) == 1 else repr(tuple(names))
