"""Daemon threads that call into the engines. A process waits for them at its end.

If such a thread returns from native code after the interpreter has ended, Python ends it by unwinding its stack, which
nanobind's frames do not allow: std::terminate then ends the whole process.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.Lock()
_threads: set[threading.Thread] = set()


def start(name: str, work: Callable[..., None], *args: Any) -> None:
    """Runs ``work(*args)`` in a thread of that name."""

    def run() -> None:
        try:
            work(*args)
        finally:
            with _lock:
                _threads.discard(threading.current_thread())

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:  # which the thread waits for before it takes itself out
        thread.start()
        _threads.add(thread)


def join(timeout: float) -> None:
    """Waits at most ``timeout`` seconds until all threads that run now have ended."""
    until = time.monotonic() + timeout
    with _lock:
        running = list(_threads)
    for thread in running:
        thread.join(max(0.0, until - time.monotonic()))
