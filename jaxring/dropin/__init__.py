"""`install`: unchanged programs run on jaxring, with JAX's own rules for AD, batching and types."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import mlir

from jaxring import _compat
from jaxring.dropin import whole_program as whole
from jaxring.dropin.lowerings import PLATFORMS, rule, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_lock = threading.RLock()
# What is wanted: by install(), and how many with-blocks of installed() are open. Both by `whole_program`.
_installed: set[bool] = set()
_open = {False: 0, True: 0}
# What brings JAX's rules back, and what ends the transformation of modules; empty while they are not in force.
_undo_rules: list[Callable[[], None]] = []
_undo_whole: list[Callable[[], None]] = []


def install(*, whole_program: bool = False) -> None:
    """Lowers JAX's own collective primitives to jaxring on CPUs, until `uninstall`. On GPUs they stay JAX's.

    It holds for the whole process and all its threads; a second call changes nothing, but that one may ask for more
    than the first. JAX's caches are cleared, so functions that were compiled before are compiled again; what `.lower()`
    or `.compile()` have returned stays as it is. Calls that jaxring cannot carry keep JAX's lowering, with a warning
    and a line in `jaxring.explain`. To export a program with `jax.export` while it holds, pass `jaxring.export_checks`.

    Args:
        whole_program: Whether also the collectives that XLA's partitioner inserts run on jaxring: those of plain
            `jax.jit` over sharded arrays, on CPUs and on GPUs (experimental: it has run on one GPU only).

    Raises:
        RuntimeError: Where this jaxlib does not allow ``whole_program``; then nothing has changed.

    Examples:
        `jax.lax`'s collectives on jaxring's engine:

            jaxring.install()
            total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(x)
    """
    with _lock:
        _want(_installed | {whole_program}, _open)


def uninstall() -> None:
    """Brings back what `install` replaced, and clears JAX's caches. Open `installed` blocks stay in force."""
    with _lock:
        _want(set(), _open)


@contextlib.contextmanager
def installed(*, whole_program: bool = False) -> Iterator[None]:
    """`install` for a with-block. Blocks may be nested, and open in several threads: the last one to end uninstalls.

    Args:
        whole_program: Whether also the collectives that XLA's partitioner inserts run on jaxring: those of plain
            `jax.jit` over sharded arrays, on CPUs and on GPUs (experimental: it has run on one GPU only).

    Returns:
        A context manager.

    Raises:
        RuntimeError: At the begin of the block, where this jaxlib does not allow ``whole_program``.

    Examples:
        For a part of the program:

            with jaxring.installed():
                train(params, batches)
    """
    with _lock:
        _want(_installed, {**_open, whole_program: _open[whole_program] + 1})
    try:
        yield
    finally:
        with _lock:
            _want(_installed, {**_open, whole_program: _open[whole_program] - 1})


def _want(installed: set[bool], opened: dict[bool, int]) -> None:
    """Brings JAX in line with what is wanted from now on. Holds the lock. Changes nothing where it raises."""
    global _installed, _open
    wanted = installed | {each for each, count in opened.items() if count}
    changed = False
    if (True in wanted) != bool(_undo_whole):
        _switch(_undo_whole, whole.start)
        changed = True
    if bool(wanted) != bool(_undo_rules):
        _switch(_undo_rules, _replace_rules)
        changed = True
    _installed, _open = installed, opened
    if changed:
        # Both compiled functions and lowered jaxprs are cached by what was traced, which is the same as before.
        jax.clear_caches()  # type: ignore[no-untyped-call]


def _switch(undo: list[Callable[[], None]], start: Callable[[], list[Callable[[], None]]]) -> None:
    if undo:
        while undo:
            undo.pop()()
    else:
        undo += start()


def _replace_rules() -> list[Callable[[], None]]:
    undo = []
    for name, primitive in served().items():
        for platform in PLATFORMS:
            undo.append(_restorer(primitive, platform))
            # Lowerings are cached by parameters otherwise, and two calls would become one site.
            mlir.register_lowering(primitive, rule(name, platform), platform=platform, cacheable=False)
    undo.append(_compat.futures_as_values())
    return undo


def _restorer(primitive: Any, platform: str) -> Callable[[], None]:
    state = _compat.lowering_state(primitive, platform)
    return lambda: _compat.restore_lowering(primitive, platform, state)
