"""The one place that knows JAX's versions and private names."""

from __future__ import annotations

from typing import Any, NamedTuple


class DistributedState(NamedTuple):
    """What jax.distributed knows: its key-value client, this process's index, how many there are, the coordinator."""

    client: Any
    process: int
    processes: int
    coordinator: str


def distributed_state() -> DistributedState | None:
    """The state of jax.distributed, or None where it has not been initialised. Does not start a backend."""
    from jax._src import distributed

    state = distributed.global_state
    if state.client is None:
        return None
    return DistributedState(state.client, state.process_id, state.num_processes, state.coordinator_address or "")


def varying(x: Any) -> frozenset[str]:
    """The mesh axes over which a traced value is known to vary; empty where JAX does not track them."""
    import jax

    return frozenset(jax.typeof(x).manual_axis_type.varying)


def with_varying(aval: Any, shape: tuple[int, ...], axes: frozenset[str]) -> Any:
    """An abstract value like ``aval`` with another shape, varying over ``axes``."""
    return aval.update(shape=shape, manual_axis_type=aval.manual_axis_type.update(varying=axes))


def tracks_varying() -> bool:
    """Whether the current trace types values by the axes over which they vary (check_vma=True)."""
    from jax._src import config

    return bool(config._check_vma.value)
