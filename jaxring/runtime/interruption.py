"""Ctrl-C and SIGTERM end a wait for peers.

Python runs a signal's handler when the main thread returns to the interpreter. While that thread waits for a collective
in native code, the handler does not run. So a thread of jaxring receives signals as they arrive
(`ffi/engine/signals/signals.h`). If the main thread has not returned a moment later, it fails the operations in flight,
here and in the processes that take part. What follows depends on the signal's handler:

* SIGINT with Python's handler (scripts, IPython, notebooks): KeyboardInterrupt is raised where the wait was.
* SIGTERM with JAX's handler, which treats it as a preemption notice once `jax.distributed` is initialised: the process
  ends by the signal, as it would without that handler. In a program that asks for such notices
  (`multihost_utils.reached_preemption_sync_point`) nothing is failed until the signal arrives again.
* A handler of the program may want the step to finish. Nothing is failed until the signal arrives again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import jax

import jaxring._native as _native
from jaxring import _compat

if TYPE_CHECKING:
    from jaxring.runtime.job import Job

logger = logging.getLogger("jaxring.runtime")

# How long the main thread has to return to the interpreter by itself.
GRACE_S = 0.6
# A main thread that was interrupted elsewhere, or whose wait JAX has ended, may still want what is in flight. What is
# still there after this time may block all later ones.
_STUCK_S = 5.0
_LOOK_S = 0.1
_TELL_S = 0.1
# How long an interrupted process waits at its end for others that have not begun to end, and for those that have.
_END_S, _TOGETHER_S = 1.2, 2.0


@dataclasses.dataclass
class _Signal:
    since: float
    times: int = 1
    was_back: bool = False  # the main thread, since the signal came


class Watcher:
    """Handles SIGINT and SIGTERM in a thread, from `start` to `stop`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._thread: threading.Thread | None = None
        self._raising: _RaiseFirst | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to receive signals that have handlers. The handlers are not changed."""
        _native.watch_signals()
        self._thread = threading.Thread(target=self._watch, name="jaxring-signals", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop: afterwards the thread is not in native code any more."""
        self._stopped.set()
        _native.stop_watching_signals()
        if self._thread is not None:
            self._thread.join(timeout)
        self._raise_first(False)

    def _watch(self) -> None:
        came: dict[int, _Signal] = {}
        while True:
            awaited = _native.await_signal(_LOOK_S if came else -1.0)
            if self._stopped.is_set():
                return
            now = time.monotonic()
            # A signal may arrive before this thread has looked whether the main thread came back after the last one.
            for each in came.values():
                each.was_back |= awaited.main_thread_is_back
            number = awaited.number
            if number in came and not came[number].was_back:
                came[number].times += 1
            elif number:
                # What the main thread has handled is not what this one insists on.
                came[number] = _Signal(now)
            try:
                came = {number: each for number, each in came.items() if self._see_to(number, each, now)}
            except Exception:
                logger.exception("what a signal interrupts has not been ended")
                came = {}

    def _see_to(self, number: int, each: _Signal, now: float) -> bool:
        """Returns False once there is nothing left to do."""
        each.was_back |= _native.main_thread_is_back()
        if each.was_back:
            self._raise_first(False)
        handler = signal.getsignal(number)
        python_raises = number == signal.SIGINT and handler is signal.default_int_handler
        waited, in_flight = now - each.since, _native.counters()["in_flight"] > 0
        name = signal.Signals(number).name
        if each.was_back:
            # Also where JAX ends a wait by itself, which leaves what was waited for in flight.
            if not python_raises or not in_flight:
                return False
            if waited > _STUCK_S:
                self._interrupt(name, waited)
                return False
            return True
        if waited < GRACE_S or not in_flight:
            return True
        if python_raises:
            self._raise_first(True)
            self._interrupt(name, 0.0)
        elif handler is signal.SIG_DFL and _compat.is_preemption_notifier(_native.handler_file(number)):
            if each.times > 1 or not _compat.preemptions_are_asked_for():
                self._end(number)
        elif each.times > 1:
            self._interrupt(name, 0.0)
        return True

    def _interrupt(self, name: str, age_s: float) -> None:
        why = f"process {jax.process_index()} was interrupted by {name}"
        # What plans would hold up later calls.
        self._job.waits.end(why)
        _native.interrupt(why, age_s)

    def _raise_first(self, first: bool) -> None:
        if first and self._raising is None:
            self._raising = _RaiseFirst()
        elif not first and self._raising is not None:
            self._raising.end()
            self._raising = None

    def _end(self, number: int) -> None:
        name = signal.Signals(number).name
        logger.warning("%s ends this process, which waits for others in a collective", name)
        _native.say_leaving(f"it was ended by {name} while it waited")
        time.sleep(_TELL_S)  # the others learn of it before its connections end
        _flush()
        _native.end_by_signal(number)


class _RaiseFirst:
    """Until `end`, what a signal's handler raises replaces the error of the wait that was ended for it.

    Otherwise the error would be raised first, and KeyboardInterrupt somewhere in the code that handles it.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident or 0
        self._monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
        self._tool = -1
        if self._monitoring is None:
            _native.raise_signals_first(self._main, True)
            return
        for tool in range(3, 6):  # the others have names of their own: debuggers, coverage, profilers
            with contextlib.suppress(ValueError):
                self._monitoring.use_tool_id(tool, "jaxring")
                self._tool = tool
                self._monitoring.register_callback(tool, self._monitoring.events.RAISE, _native.raise_signals)
                self._monitoring.set_events(tool, self._monitoring.events.RAISE)
                return

    def end(self) -> None:
        if self._monitoring is None:
            _native.raise_signals_first(self._main, False)
        elif self._tool >= 0:
            self._monitoring.set_events(self._tool, 0)
            self._monitoring.register_callback(self._tool, self._monitoring.events.RAISE, None)
            self._monitoring.free_tool_id(self._tool)


def end_soon() -> None:
    """Have this process, which ends after Ctrl-C, end by SIGINT soon, also where JAX still waits for other processes.

    JAX waits for all processes at the end of a job (`jax.distributed.shutdown`), in native code. Where all have been
    interrupted, that wait is over in a moment and they end in good order.
    """
    others = [process for process in range(jax.process_count()) if process != jax.process_index()]
    _flush()
    _native.end_later(signal.SIGINT, _END_S, _TOGETHER_S, others)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
