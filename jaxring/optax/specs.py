"""How the states of these transformations cross the border of `jax.shard_map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxring.optax.compressed import CompressedMeanState
from jaxring.optax.local import DilocoState
from jaxring.tracing.axes import named

if TYPE_CHECKING:
    from jaxring.tracing.axes import AxisName


def state_specs(state: Any, axis_name: AxisName, *, sharded_over: AxisName = ()) -> Any:
    """The `jax.sharding.PartitionSpec` of each array of an optimiser's state, for `jax.shard_map`.

    Residuals, and the inner optimiser of `diloco`, have ranks on their first axis; all else is the same on all ranks.

    Args:
        state: A state, or its shapes as of `jax.eval_shape`, that may hold a `CompressedMeanState` or a `DilocoState`
            anywhere.
        axis_name: The mesh axis or axes of the transformation.
        sharded_over: The mesh axes beside ``axis_name`` over which parameters are sharded, so that each device's state
            is of its own shards. All arrays of these two states but ``step`` then have the ranks of these axes on their
            first axis, too; states of other transformations are no concern of it. Without it such a state is refused by
            JAX with ``check_vma=True``, and with ``check_vma=False`` one device's part is taken for all. Parameters
            that are replicated over these axes beside others that are sharded need ``check_vma=False``.

    Returns:
        A pytree like ``state``, of specs.

    Raises:
        TypeError: Where an axis name is none.

    Examples:
        For the state of an optimiser:

            specs = jaxring.optax.state_specs(jax.eval_shape(optimizer.init, params), "data")
    """
    axes, others = (named("optax.state_specs", names) for names in (axis_name, sharded_over))
    same: Any = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    by_rank: Any = jax.sharding.PartitionSpec((*axes, *others))  # type: ignore[no-untyped-call]
    by_shard: Any = jax.sharding.PartitionSpec(others) if others else same  # type: ignore[no-untyped-call]

    def of(node: Any) -> Any:
        match node:
            case CompressedMeanState():
                return CompressedMeanState(same, jax.tree.map(lambda _: by_rank, node.residual))
            case DilocoState():
                inner = jax.tree.map(lambda _: by_rank, node.inner)
                common = jax.tree.map(lambda _: by_shard, (node.outer, node.anchor))
                return DilocoState(same, inner, *common)
        return same

    return jax.tree.map(of, state, is_leaf=lambda node: isinstance(node, (CompressedMeanState, DilocoState)))
