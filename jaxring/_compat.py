"""The one place that knows JAX's versions and private names."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping


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


class _SyncPoints:
    """JAX's manager of preemptions, which remembers whether the program asks it."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.asked = False

    def reached_sync_point(self, step: int) -> bool:
        self.asked = True
        return bool(self._manager.reached_sync_point(step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def note_preemption_points() -> None:
    """Have `preemptions_are_asked_for` observe the program. Called when jax.distributed is initialised."""
    from jax._src import distributed

    state = distributed.global_state
    manager = state.preemption_sync_manager
    if manager is not None and not isinstance(manager, _SyncPoints):
        state.preemption_sync_manager = _SyncPoints(manager)


def preemptions_are_asked_for() -> bool:
    """Whether the program has called `multihost_utils.reached_preemption_sync_point`."""
    from jax._src import distributed

    manager = distributed.global_state.preemption_sync_manager
    return isinstance(manager, _SyncPoints) and manager.asked


def is_preemption_notifier(file: str) -> bool:
    """Whether the handler of SIGTERM in this program or library is the one by which JAX notices preemptions."""
    return "jaxlib" in file


def varying(x: Any) -> frozenset[Hashable]:
    """The mesh axes over which a traced value is known to vary; empty where JAX does not track them."""
    import jax

    return frozenset(jax.typeof(x).manual_axis_type.varying)


def with_varying(aval: Any, shape: tuple[int, ...], axes: frozenset[Hashable]) -> Any:
    """An abstract value like ``aval`` with another shape, varying over ``axes``. Dimensions come and go in front."""
    import jax

    sharding = aval.sharding
    if axes:
        # A constant made outside of the region knows nothing of its mesh.
        sharding = sharding.update(mesh=jax.sharding.get_abstract_mesh())
    if len(shape) != aval.ndim:
        # Explicit mesh axes, where the region leaves some: the dimensions that stay keep theirs.
        kept = [None] * len(shape) + list(sharding.spec)
        spec = jax.sharding.PartitionSpec(*kept[len(kept) - len(shape) :])  # type: ignore[no-untyped-call]
        sharding = sharding.update(spec=spec)
    return aval.update(shape=shape, sharding=sharding, manual_axis_type=aval.manual_axis_type.update(varying=axes))


def tracks_varying() -> bool:
    """Whether the current trace types values by the axes over which they vary (check_vma=True)."""
    from jax._src import config

    return bool(config._check_vma.value)


def lowering_token(module_context: Any) -> object:
    """An object that all contexts of one lowering share, and no other lowering has while it is alive."""
    token: object = module_context.channel_iterator
    return token


def trace_state() -> object:
    """Equal to another one where both were asked for in the same trace."""
    from jax._src import core

    state: object = core.get_opaque_trace_state()  # type: ignore[no-untyped-call]
    return state


def collective_primitives() -> dict[str, Any]:
    """JAX's primitives of `jax.lax`'s parallel operations by name ("psum", "psum_invariant", ...), casts included."""
    from jax._src import core
    from jax._src.lax import parallel

    found = [value for name, value in vars(parallel).items() if name.endswith("_p")]
    found += [core.pvary_p, core.reduced_vary_cast_p]
    return {p.name.removesuffix("_p"): p for p in found if isinstance(p, core.Primitive)}


class LoweringState(NamedTuple):
    """What JAX knows about lowering a primitive for a platform: its entry, if any, and whether lowerings are kept."""

    entry: Any
    uncacheable: bool


def lowering_state(primitive: Any, platform: str) -> LoweringState:
    """The present state; `restore_lowering` brings it back."""
    from jax._src.interpreters import mlir

    entry = mlir._platform_specific_lowerings[platform].get(primitive)
    return LoweringState(entry, primitive in mlir._uncacheable_primitives)


def restore_lowering(primitive: Any, platform: str, state: LoweringState) -> None:
    """Undoes `jax.interpreters.mlir.register_lowering`."""
    from jax._src.interpreters import mlir

    rules = mlir._platform_specific_lowerings[platform]
    if state.entry is None:
        rules.pop(primitive, None)
    else:
        rules[primitive] = state.entry
    if not state.uncacheable:
        mlir._uncacheable_primitives.discard(primitive)


def default_lowering(primitive: Any, platform: str) -> Any:
    """JAX's rule for a primitive, or None where it has none for this platform."""
    from jax._src.interpreters import mlir

    entry = mlir._platform_specific_lowerings[platform].get(primitive) or mlir._lowerings.get(primitive)
    return None if entry is None else entry.rule


def untyped(aval: Any) -> Any:
    """``aval`` without what is known of its values on other ranks (varying, unreduced, ...)."""
    return aval.update(manual_axis_type=type(aval.manual_axis_type)()) if hasattr(aval, "manual_axis_type") else aval


def awaited(aval: Any) -> Any:
    """The type that a future of an asynchronous collective will hold; other types as they are."""
    from jax._src import core

    return aval.inner_aval if isinstance(aval, core.AbstractFuture) else aval


def futures_as_values() -> Callable[[], None]:
    """From now on futures lower to the type that they hold. Returns what undoes it. Newer versions of JAX always do."""
    from jax._src import core
    from jax._src.interpreters import mlir

    handlers = mlir.ir_type_handlers
    former = handlers[core.AbstractFuture]
    handlers[core.AbstractFuture] = lambda future: handlers[core.ShapedArray](future.inner_aval)

    def undo() -> None:
        handlers[core.AbstractFuture] = former

    return undo


@functools.cache
def _substitution() -> Any:
    from jax._src import core

    class Substitution(core.Trace):
        """Binds copies in place of primitives. Has no tracers of its own: ``parent`` gets everything."""

        def __init__(self, parent: Any, copies: Mapping[Any, Any]) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.parent = parent
            self.copies = copies
            self.requires_low = parent.requires_low

        def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
            return self.parent.process_primitive(self.copies.get(primitive, primitive), args, params)

        def stage_value(self, value: Any) -> Any:
            return self.parent.stage_value(value)

        def process_call(self, *args: Any, **params: Any) -> Any:
            return self.parent.process_call(*args, **params)

        def process_custom_jvp_call(self, *args: Any, **params: Any) -> Any:
            return self.parent.process_custom_jvp_call(*args, **params)

        def process_custom_vjp_call(self, *args: Any, **params: Any) -> Any:
            return self.parent.process_custom_vjp_call(*args, **params)

    return Substitution


@contextlib.contextmanager
def substituting(copies: Mapping[Any, Any]) -> Iterator[None]:
    """Within, whatever binds a primitive that is a key of ``copies`` binds its copy, under any transformation."""
    from jax._src import core

    with core.set_current_trace(_substitution()(core.trace_ctx.trace, copies)):  # type: ignore[no-untyped-call]
        yield
