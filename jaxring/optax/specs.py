"""How the states of these transformations cross the border of `jax.shard_map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxring.optax.compressed import CompressedMeanState
from jaxring.optax.local import DilocoState
from jaxring.tracing.axes import named

if TYPE_CHECKING:
    from jaxring.tracing.axes import AxisName


def state_specs(state: Any, axis_name: AxisName) -> Any:
    """The `jax.sharding.PartitionSpec` of each array of an optimiser's state, for `jax.shard_map`.

    ``state`` is a state, or its shapes as of `jax.eval_shape`, that may hold a `CompressedMeanState` or a
    `DilocoState` anywhere.
    Residuals, and the inner optimiser of `diloco`, have ranks on their first axis; all else is the same on all ranks.
    """
    whole: Any = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    by_rank: Any = jax.sharding.PartitionSpec(named("optax.state_specs", axis_name))  # type: ignore[no-untyped-call]

    def of(node: Any) -> Any:
        match node:
            case CompressedMeanState():
                return CompressedMeanState(whole, jax.tree.map(lambda _: by_rank, node.residual))
            case DilocoState():
                inner = jax.tree.map(lambda _: by_rank, node.inner)
                same = jax.tree.map(lambda _: whole, (node.outer, node.anchor))
                return DilocoState(whole, inner, *same)
        return whole

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, (CompressedMeanState, DilocoState)))
