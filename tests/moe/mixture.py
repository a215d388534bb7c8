"""A mixture of experts of which each multiplies by a number of its own, and the same by NumPy, choice by choice."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring

EXPERTS = 8


class Case(NamedTuple):
    """Tokens of all ranks, their choices, the choices' weights, and the number of each expert."""

    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    scale: np.ndarray


def case(tokens: int = 32, width: int = 5, choices: int = 2, seed: int = 0) -> Case:
    """Some ids are no expert's, some choices of a token are the same, and the first expert is chosen often."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, EXPERTS + 1, (tokens, choices)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = 0
    return Case(
        rng.standard_normal((tokens, width), np.float32),
        ids,
        rng.random((tokens, choices), np.float32),
        np.arange(1, EXPERTS + 1, dtype=np.float32),
    )


def kept(ids: np.ndarray, capacity: int | None) -> np.ndarray:
    """Whether each choice is sent: the first ones of each expert, up to its capacity."""
    found = np.zeros(ids.shape, bool)
    taken = np.zeros(EXPERTS, int)
    for place, expert in np.ndenumerate(ids):
        if 0 <= expert < EXPERTS and (capacity is None or taken[expert] < capacity):
            taken[expert] += 1
            found[place] = True
    return found


def dense(one: Case, capacity: int | None) -> Any:
    """What all tokens get, as a function of (x, weights, scale) that JAX differentiates."""
    share, experts = kept(one.ids, capacity).astype(np.float32), np.clip(one.ids, 0, EXPERTS - 1)
    return lambda x, weights, scale: jnp.einsum("tk,tk,td->td", weights * share, scale[experts], x)


def sent_rows(one: Case, capacity: int | None) -> list[np.ndarray]:
    """The rows of each expert, in order."""
    places = [np.argwhere(kept(one.ids, capacity) & (one.ids == expert)) for expert in range(EXPERTS)]
    return [one.x[found[:, 0]] for found in places]


def program(mesh: Any, check_vma: bool = True, **options: Any) -> Any:
    """The function of (x, ids, weights, scale) that gives (y, tokens, counts, dropped of each rank)."""

    def mine(x: Any, ids: Any, weights: Any, scale: Any) -> Any:
        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS, **options)
        if options.get("capacity") is not None:
            answers = sent.tokens * scale[:, None, None]
        else:
            row = jnp.arange(len(sent.tokens))
            expert = jnp.searchsorted(jnp.cumsum(sent.counts), row, side="right")
            answers = sent.tokens * scale[jnp.minimum(expert, len(scale) - 1), None]
        return jaxring.moe.combine(answers, sent, weights), sent.tokens, sent.counts, sent.dropped[None]

    each = P("e")
    return jax.shard_map(mine, mesh=mesh, in_specs=each, out_specs=each, check_vma=check_vma)
