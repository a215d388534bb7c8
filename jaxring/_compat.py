"""All uses of JAX's private names, and all differences between its versions. No other module has any."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping


class DistributedState(NamedTuple):
    """jax.distributed's key-value client, this process's index, the number of processes, the coordinator's address."""

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


# Coordination services of jobs that this process has left. Others may still be leaving: one that finds no service ends.
_services: list[Any] = []


def leave_distributed() -> None:
    """Shut jax.distributed and the backends down, so that it can be initialised as another job.

    The service, if this process holds it, runs on until the process ends: recoverable processes do not wait for each
    other when they leave.
    """
    import jax
    from jax._src import distributed
    from jax.extend import backend

    state = distributed.global_state
    if state.service is not None:
        _services.append(state.service)
        state.service = None
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]
    backend.clear_backends()  # type: ignore[no-untyped-call]


class _SyncPoints:
    """JAX's preemption manager, which also records whether the program asks it."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.asked = False

    def reached_sync_point(self, step: int) -> bool:
        self.asked = True
        return bool(self._manager.reached_sync_point(step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def note_preemption_points() -> None:
    """Starts to record what `preemptions_are_asked_for` returns. Called when jax.distributed is initialised."""
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
    """Whether the handler of SIGTERM in that program or library is the one by which JAX notices preemptions."""
    return "jaxlib" in file


def varying(x: Any) -> frozenset[Hashable]:
    """The mesh axes over which a traced value is known to vary; empty where JAX does not track them."""
    import jax

    return frozenset(jax.typeof(x).manual_axis_type.varying)


def with_varying(aval: Any, shape: tuple[int, ...], axes: frozenset[Hashable]) -> Any:
    """An abstract value like ``aval`` with another shape, varying over ``axes``. Only leading dimensions may differ."""
    import jax

    sharding = aval.sharding
    if axes:
        # A constant that was made outside of the region does not have its mesh.
        sharding = sharding.update(mesh=jax.sharding.get_abstract_mesh())
    if len(shape) != aval.ndim:
        # If the region leaves some mesh axes explicit, the dimensions that stay keep their sharding over them.
        kept = [None] * len(shape) + list(sharding.spec)
        spec = jax.sharding.PartitionSpec(*kept[len(kept) - len(shape) :])  # type: ignore[no-untyped-call]
        sharding = sharding.update(spec=spec)
    return aval.update(shape=shape, sharding=sharding, manual_axis_type=aval.manual_axis_type.update(varying=axes))


def tracks_varying() -> bool:
    """Whether the current trace types values by the axes over which they vary (check_vma=True)."""
    from jax._src import config

    return bool(config._check_vma.value)


def lowering_token(module_context: Any) -> object:
    """An object that all contexts of one lowering share. No other lowering has it as long as it is alive."""
    token: object = module_context.channel_iterator
    return token


def trace_state() -> object:
    """A token of the current trace: two are equal if they were made in the same trace."""
    from jax._src import core

    state: object = core.get_opaque_trace_state()  # type: ignore[no-untyped-call]
    return state


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Within it there is no mesh of `jax.set_mesh`, as `jax.set_mesh(None)` has it, which eager `jax.grad` refuses."""
    from jax._src import config, mesh

    states: Any = mesh if hasattr(mesh, "device_context") else config  # jax 0.10 has them in the latter
    abstract = states.abstract_mesh_context_manager.swap_local(mesh.empty_abstract_mesh)
    concrete = states.device_context.swap_local(mesh.empty_concrete_mesh)
    try:
        yield
    finally:
        states.abstract_mesh_context_manager.set_local(abstract)
        states.device_context.set_local(concrete)


def operations_are_staged() -> bool:
    """Whether an operation on concrete arrays gives a traced one here, as inside `jax.jit`."""
    import jax.numpy as jnp
    from jax._src import core

    return not core.trace_ctx.is_top_level() and isinstance(jnp.add(0, 0), core.Tracer)


def collective_primitives() -> dict[str, Any]:
    """The primitives of `jax.lax`'s parallel operations and casts, by name ("psum", "psum_invariant", ...)."""
    from jax._src import core
    from jax._src.lax import parallel

    found = [value for name, value in vars(parallel).items() if name.endswith("_p")]
    found += [core.pvary_p, core.reduced_vary_cast_p]
    return {p.name.removesuffix("_p"): p for p in found if isinstance(p, core.Primitive)}


class LoweringState(NamedTuple):
    """JAX's state for lowering a primitive on a platform: its entry or None, and whether lowerings are not cached."""

    entry: Any
    uncacheable: bool


def lowering_state(primitive: Any, platform: str) -> LoweringState:
    """The current state, for `restore_lowering`."""
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
    """``aval`` without the part of its type that says how values differ between ranks (varying, unreduced, ...)."""
    return aval.update(manual_axis_type=type(aval.manual_axis_type)()) if hasattr(aval, "manual_axis_type") else aval


def awaited(aval: Any) -> Any:
    """The type of the value that an asynchronous collective's future will hold. Other types are returned unchanged."""
    from jax._src import core

    return aval.inner_aval if isinstance(aval, core.AbstractFuture) else aval


def done_by_copies(aval: Any, copies: Mapping[Any, Any]) -> Any:
    """The future ``aval`` with the copy, in ``copies``, of the primitive that its `done()` binds."""
    return aval.update(done_fun=copies[aval.done_fun.__self__].bind)


def futures_as_values() -> Callable[[], None]:
    """Makes futures lower to the type of their value, as newer versions of JAX do. Returns what undoes it."""
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
        """Binds copies instead of primitives. It has no tracers of its own and passes everything to ``parent``."""

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
    """Within the context, binding a primitive that is a key of ``copies`` binds its copy, under any transformation."""
    from jax._src import core

    with core.set_current_trace(_substitution()(core.trace_ctx.trace, copies)):  # type: ignore[no-untyped-call]
        yield


def register_cpu_transformation(name: str, transform: Callable[[bytes], bytes | None]) -> Callable[[], None]:
    """Has XLA hand each module that it compiles for CPUs to ``transform``, as a serialized HloModuleProto.

    Returns what undoes it. RuntimeError where jaxlib has no such door. It does what
    `jax.extend.xla.register_hlo_module_transformation` does for CPUs; that starts all backends besides, after which
    `jax.distributed.initialize` is refused.
    """
    from jaxlib import version

    try:
        from jaxlib import _xla
    except ImportError:
        raise RuntimeError(f"jaxlib {version.__version__} does not let XLA's modules be transformed") from None
    before_the_scheduler = 0
    _xla.register_xla_transform(name, before_the_scheduler, transform)

    def undo() -> None:
        _xla.clear_xla_transform(name, before_the_scheduler)

    return undo


def register_cuda_transformation(
    name: str, transform: Callable[[bytes], bytes | None], refused: Callable[[str], None]
) -> Callable[[], None]:
    """The same for modules that JAX's CUDA plugin compiles, from when the plugin is loaded. Returns what undoes it.

    It does nothing where there is no such plugin, and calls ``refused`` with the reason where the plugin does not let
    modules be transformed. JAX loads its plugins before it starts a backend; nothing here makes it do so.
    """
    from jax._src import xla_bridge
    from jaxlib import _jax, _xla

    before_the_scheduler = 0
    registered: list[Any] = []
    wanted = True

    def register(plugin: Any) -> None:
        if not wanted or registered:
            return
        try:
            _xla.register_xla_transform_c_api(plugin, name, before_the_scheduler, transform)
        except RuntimeError as error:  # an exception would keep JAX from starting
            refused(str(error))
            return
        registered.append(plugin)

    def with_plugins(c_api: Any = None) -> None:
        del c_api  # of any platform
        if _jax.pjrt_plugin_loaded("cuda"):
            register(_jax.get_pjrt_plugin("cuda"))

    def with_client(client: Any) -> None:
        if client.platform in ("cuda", "gpu") and client.platform_version.startswith("cuda"):
            register(client)

    def undo() -> None:
        nonlocal wanted
        wanted = False
        while registered:
            _xla.clear_xla_transform_c_api(registered.pop(), name, before_the_scheduler)

    if hasattr(_jax, "get_pjrt_plugin"):
        xla_bridge.register_plugin_callbacks(with_plugins)  # type: ignore[no-untyped-call]
    else:  # jaxlib 0.10 takes a client
        xla_bridge.register_backend_initialization_hook(with_client)
    return undo


def transformed_modules_lose_donation() -> bool:
    """Whether a transformed module forgets which arguments its caller has donated."""
    from jaxlib import version

    return tuple(map(int, version.__version__.split(".")[:2])) < (0, 11)


def extend_cache_key(text: str) -> Callable[[], None]:
    """From now on programs in the persistent compilation cache are found by ``text``, too. Returns what undoes it."""
    from jax._src import cache_key

    former = cache_key.custom_hook

    def hook() -> str:
        return former() + text

    cache_key.custom_hook = hook

    def undo() -> None:
        # Another one that was set since calls ours, which then adds nothing.
        nonlocal text
        text = ""
        if cache_key.custom_hook is hook:
            cache_key.custom_hook = former

    return undo
