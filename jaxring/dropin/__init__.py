"""`install`: unchanged `jax.lax` code runs on jaxring, with JAX's own rules for AD, batching and types."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import mlir

from jaxring import _compat
from jaxring.dropin.lowerings import PLATFORMS, rule, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_lock = threading.RLock()
_installed = False  # by install()
_open = 0  # with-blocks of installed()
_undo: list[Callable[[], None]] = []  # what brings JAX's rules back; empty while they are in place


def install() -> None:
    """Lowers JAX's own collective primitives to jaxring, on the platforms that it serves, until `uninstall`.

    It holds for the whole process and all its threads; a second call changes nothing. JAX's caches are cleared, so
    functions that were compiled before are compiled again; what `.lower()` or `.compile()` have returned stays as it
    is. Calls that jaxring cannot carry keep JAX's lowering, with a warning and a line in `jaxring.explain`. To export a
    program with `jax.export` while it holds, pass `jaxring.export_checks`.
    """
    global _installed
    with _lock:
        _installed = True
        _update()


def uninstall() -> None:
    """Brings back the rules that `install` replaced, and clears JAX's caches. Open `installed` blocks stay in force."""
    global _installed
    with _lock:
        _installed = False
        _update()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """`install` for a with-block. Blocks may be nested, and open in several threads: the last one to end uninstalls."""
    global _open
    with _lock:
        _open += 1
        _update()
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            _update()


def _update() -> None:
    """Brings JAX's rules in line with what is wanted. Holds the lock."""
    if bool(_installed or _open) == bool(_undo):
        return
    if _undo:
        while _undo:
            _undo.pop()()
    else:
        for name, primitive in served().items():
            for platform in PLATFORMS:
                _undo.append(_restorer(primitive, platform))
                # Lowerings are cached by parameters otherwise, and two calls would become one site.
                mlir.register_lowering(primitive, rule(name, platform), platform=platform, cacheable=False)
        _undo.append(_compat.futures_as_values())
    # Both compiled functions and lowered jaxprs are cached by what was traced, which is the same as before.
    jax.clear_caches()  # type: ignore[no-untyped-call]


def _restorer(primitive: Any, platform: str) -> Callable[[], None]:
    state = _compat.lowering_state(primitive, platform)
    return lambda: _compat.restore_lowering(primitive, platform, state)
