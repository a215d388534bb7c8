"""Daemon threads that call into the engines, and that a process which ends waits for.

One that comes back from native code when the interpreter has gone ends the whole process by std::terminate: Python ends
such threads by unwinding their stacks, and nanobind's frames do not let that pass.
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
    with _lock:
        _threads.add(thread)
    thread.start()


def join(timeout: float) -> None:
    """Waits ``timeout`` seconds at most until all have ended that run now."""
    until = time.monotonic() + timeout
    with _lock:
        running = list(_threads)
    for thread in running:
        thread.join(max(0.0, until - time.monotonic()))
