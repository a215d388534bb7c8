"""Arrays in blocks, one for each rank: splits a dimension into blocks and concatenates them again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def split(what: str, x: Any, dimension: int, ranks: int, tiled: bool) -> Any:
    """Blocks first: ``(ranks, ...)``. With ``tiled`` the rest of the split dimension follows as the second axis."""
    size = x.shape[dimension]
    if not tiled:
        if size != ranks:
            raise ValueError(
                f"jaxring.{what}: dimension {dimension} of shape {x.shape} must have one entry for each of the "
                f"{ranks} ranks, not {size}; pass tiled=True to split a longer dimension."
            )
        return jnp.moveaxis(x, dimension, 0)
    if size % ranks != 0:
        raise ValueError(
            f"jaxring.{what}: dimension {dimension} of shape {x.shape} has {size} entries, which {ranks} ranks cannot "
            f"share equally; pad it to a multiple of {ranks}."
        )
    split = x.reshape(*x.shape[:dimension], ranks, size // ranks, *x.shape[dimension + 1 :])
    return jnp.moveaxis(split, (dimension, dimension + 1), (0, 1))


def join(y: Any, dimension: int, tiled: bool) -> Any:
    """Undoes blocks first: a new dimension, or concatenation along an existing one."""
    y = jnp.moveaxis(y, 0, dimension)
    if not tiled:
        return y
    shape = y.shape
    return y.reshape(*shape[:dimension], shape[dimension] * shape[dimension + 1], *shape[dimension + 2 :])
