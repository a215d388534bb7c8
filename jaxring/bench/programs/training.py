"""Training steps, with little compute beside their collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring.bench.programs.operand import COLUMNS, HEADS, ROWS, WHOLE, Operand, Workload, side, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.sharding import PartitionSpec as P

    Constrain = Callable[..., Any]

_RATE = 1e-2
# The transformer block's tokens that see each other, and the width of a head.
_SEQUENCE, _HEAD = 16, 8


def data_parallel(nbytes: int, ranks: int) -> Workload:
    """The gradients of two layers are summed over the batch, which is sharded."""
    return _two_layers(nbytes, ranks, WHOLE)


def fsdp(nbytes: int, ranks: int) -> Workload:
    """The layers are sharded, too: gathered for use, and their gradients scattered."""
    return _two_layers(nbytes, ranks, ROWS)


def _two_layers(nbytes: int, ranks: int, sharded: P) -> Workload:
    n = side(nbytes / 2, 4, ranks)

    def loss(weights: tuple[Any, Any], x: Any, y: Any) -> Any:
        first, second = weights
        return jnp.mean((jnp.tanh(x @ first) @ second - y) ** 2)

    def function(_: Constrain, first: Any, second: Any, x: Any, y: Any) -> tuple[Any, ...]:
        value, gradients = jax.value_and_grad(loss)((first, second), x, y)
        stepped = [w - _RATE * gradient for w, gradient in zip((first, second), gradients, strict=True)]
        return (value, *stepped)

    weights = Operand((n, n), sharded, n**-0.5)
    batch = Operand((ranks, n), ROWS)
    return Workload(function, (weights, weights, batch, batch), (WHOLE, sharded, sharded))


def tensor_parallel(nbytes: int, ranks: int) -> Workload:
    """Attention by heads and a layer by hidden units, each summed over the devices; then the same backwards."""
    width = _HEAD * ranks
    sequences = whole(nbytes, 4 * width * _SEQUENCE)

    def block(x: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
        q, k, v = jnp.einsum("std,dchw->cshtw", x, qkv)
        seen = jax.nn.softmax(jnp.einsum("shtw,shuw->shtu", q, k) * _HEAD**-0.5)
        x = x + jnp.einsum("shtu,shuw,hwd->std", seen, v, out)
        return x + jax.nn.relu(x @ up) @ down

    def function(constrain: Constrain, x: Any, *weights: Any) -> tuple[Any, ...]:
        result, back = jax.vjp(block, x, *weights)
        return (constrain(result, WHOLE), *back(result))

    small = width**-0.5
    operands = (
        Operand((sequences, _SEQUENCE, width), WHOLE),
        Operand((width, 3, ranks, _HEAD), HEADS, small),
        Operand((ranks, _HEAD, width), ROWS, small),
        Operand((width, 4 * width), COLUMNS, small),
        Operand((4 * width, width), ROWS, small / 2),
    )
    return Workload(function, operands, (WHOLE, *(each.spec for each in operands)))
