"""The planning thread: it waits for call sites that run for the first time and answers each with a plan.

An FFI handler never calls Python, and it waits only for its peers and for a bounded time (docs/concepts/waiting.md).
The work that needs Python (topology, rendezvous, schedules) is done here, once per call site and group, while the
operation waits in the engine until its own deadline.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time

import jax

import jaxring._native as _native
from jaxring import _command, _compat
from jaxring.errors import JaxringError
from jaxring.plan.collectives import CALLS, COLLECTIVES
from jaxring.runtime import ending, programs
from jaxring.runtime import job as jobs
from jaxring.runtime.cuda import service as cuda_service
from jaxring.runtime.freed_memory import keep_freed_blocks
from jaxring.runtime.interruption import Watcher, end_soon
from jaxring.runtime.planner import Planner
from jaxring.runtime.reporting.record_files import hint, make_room, new_file, new_prefix
from jaxring.runtime.reporting.straggler_watch import StragglerWatch
from jaxring.settings import Settings, announce, kinds, settings
from jaxring.world import daemons
from jaxring.world.identity import version
from jaxring.world.waits import was_ended

logger = logging.getLogger("jaxring.runtime")

_POLL_S = 0.5
_LONG_S = 3600.0
_STALLS_END_S = 10.0
_ABORT_S = 2.0
# The event by which JAX reports how long it took to compile a program.
_COMPILED = "/jax/core/compile/backend_compile_duration"
# absl status codes, which reach the user as JaxRuntimeError's.
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL, _UNAVAILABLE = 3, 8, 13, 14
# The custom calls in programs: the collectives, and the call that waits for a collective that was started.
DONE = "jaxring_done"
# On GPUs a collective that was started runs on its own stream; JOIN makes the program's stream wait for that one.
STARTS = {each.target: f"jaxring_start_{each.name}" for each in COLLECTIVES.values()}
JOIN = "jaxring_join"
COLLECTIVE_TARGETS = tuple(each.target for each in CALLS.values() if each.has_call)
# What XLA must not capture on GPUs: collectives over an abstract mesh.
UNCAPTURED = tuple(each.uncaptured_target for each in CALLS.values() if each.has_call)
# The arithmetic of compressed collectives, on CPUs only.
QUANTIZE, SUM_QUANTIZED, DEQUANTIZE = "jaxring_quantize", "jaxring_sum_quantized", "jaxring_dequantize"
TARGETS = (*COLLECTIVE_TARGETS, DONE)
# Both ends of an exact sum, on CPUs. No rank waits in them.
GIVE_EXACT_SUMS, ROUND_EXACT_SUMS = "jaxring_give_exact_sums", "jaxring_round_exact_sums"
# On GPUs the name selects the handler; all names but these last are collectives.
GPU_TARGETS = (*TARGETS, *UNCAPTURED, *STARTS.values(), JOIN)
_lock = threading.Lock()
_thread: threading.Thread | None = None
_stalls: threading.Thread | None = None
_job = jobs.own()
_job.gpus = cuda_service.bus_ids
_planner = Planner(_job)
_watcher = Watcher(_job)
_hint = ""  # the sentence about the flight record that errors end with
_stop = threading.Event()


def register_targets() -> None:
    """Registers the custom calls with XLA and starts the planning thread. Needs no backend."""
    ensure_started()
    handlers = _native.handlers()
    for target in COLLECTIVE_TARGETS:
        execute = handlers["ragged" if target == "jaxring_ragged_all_to_all" else "collective"]
        stages = {"instantiate": handlers["instantiate"], "execute": execute}
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    jax.ffi.register_ffi_target(DONE, handlers["done"], platform="cpu")
    for target in (QUANTIZE, SUM_QUANTIZED, DEQUANTIZE):
        jax.ffi.register_ffi_target(target, handlers[target.removeprefix("jaxring_")], platform="cpu")
    jax.ffi.register_ffi_target(GIVE_EXACT_SUMS, handlers["exact_give"], platform="cpu")
    jax.ffi.register_ffi_target(ROUND_EXACT_SUMS, handlers["exact_round"], platform="cpu")
    cuda = cuda_service.native_module()
    if cuda is not None:
        cuda_service.register_targets(cuda, GPU_TARGETS)


def ensure_started() -> None:
    """Starts the engine and the planning thread, once."""
    global _thread, _stalls
    with _lock:
        if _thread is not None:
            return
        configured = settings()
        announce(os.environ, version())
        if configured.faults:
            logger.warning("JAXRING_FAULTS is set: faults are injected into messages")
        # What the command `jaxring` runs, also as a job of its own, is no part of the job whose records are kept there:
        # `trace diff` would find it behind all others.
        folder = "" if _command.this_process() else configured.trace_dir
        try:
            _start(configured, new_file(folder))
        except (OSError, RuntimeError) as error:
            if not folder:
                raise
            # The job can go on: a record in memory serves until the process ends.
            logger.warning(
                "JAXRING_TRACE_DIR=%s cannot hold the flight record, which is kept in memory instead: %s", folder, error
            )
            folder = ""
            _start(configured, "")
        _native.dump_on_signal(new_prefix(folder))
        _thread = threading.Thread(target=_serve, name="jaxring-planner", daemon=True)
        _thread.start()
        _watcher.start()
        if configured.stall_warning:
            # It has its own thread, because the planning thread may be the one that waits.
            _stalls = threading.Thread(target=_warn_of_stalls, name="jaxring-stalls", daemon=True)
            _stalls.start()
        jax.monitoring.register_event_duration_secs_listener(_compiled)
        atexit.register(_end)


def _compiled(event: str, duration_secs: float, **about: str | float) -> None:
    """JAX calls this on the thread that has compiled a program or found it in its cache."""
    del duration_secs
    if event == _COMPILED:
        _native.end_program(programs.compiled(str(about.get("fun_name", ""))))


def _start(configured: Settings, trace_file: str) -> None:
    global _hint
    _hint = hint(trace_file)
    _native.start(
        threads=configured.worker_threads,
        slot_bytes=configured.slot_bytes,
        spin_us=_SPIN_US,
        patience_us=configured.patience,
        trace_file=trace_file,
        checksums=bool(configured.checksum),
        faults=kinds.fault_plan(configured.faults),
        non_finite=configured.nan_check,
        link_timeout_s=configured.link_timeout,
        record_hint=_hint,
        operand_files=trace_file.removesuffix(".trace") + "-",
        operand_bytes=configured.save_operands if trace_file else 0,
        stall_warning_s=configured.stall_warning,
    )


# How long a launching or idle thread polls before it sleeps. There are often more ranks than cores, so it is short.
_SPIN_US = 20


def job() -> jobs.Job:
    """This process's part in the job."""
    return _job


def forget() -> None:
    """Has a suspended process begin anew: jax.distributed is initialised as another job."""
    _job.forget()
    _planner.forget()


def _serve() -> None:
    kept = False
    named: tuple[int, int, str] | None = None
    watch: StragglerWatch | None = None
    while not _stop.is_set():
        request = _native.next_request(_POLL_S)
        try:
            cuda_service.serve()
        except Exception:
            logger.exception("serving the CUDA engine failed")
        before, named = named, _name(named)
        _warn()
        if named != before:  # in another job the numbers mean other processes
            watch = StragglerWatch(_native, named[0]) if named and settings().stall_warning else None
        try:
            _job.converse()
        except Exception:
            logger.exception("comparing programs with other processes failed")
        try:
            for sentence in watch.look(time.monotonic()) if watch is not None else ():
                logger.warning("%s", sentence)
        except Exception:
            logger.exception("looking for stragglers failed; this process looks no more")
            watch = None
        if request is None:
            continue
        if not kept:
            # Not at import: a process that runs no collective keeps malloc's own settings.
            keep_freed_blocks(os.environ)
            kept = True
        if cuda_service.started() or _planner.asks_peers(request):
            # This waits until the peers reach the call, and they may wait in another one, of this engine or of the one
            # for GPUs. So it gets its own thread.
            try:
                daemons.start("jaxring-plan", _answer, _planner, request)
            except RuntimeError as error:  # the system has no thread left
                request.reject(_RESOURCE_EXHAUSTED, f"jaxring: {error}")
        else:
            _answer(_planner, request)
        # The request keeps its call site, and that the executable, alive.
        del request


def _name(named: tuple[int, int, str] | None) -> tuple[int, int, str] | None:
    """Writes this process's number to the flight record once jax.distributed is initialised, or is as another job.

    This does not wait for the first call: a process may fail before that. ``named`` and the result: what it says.
    """
    state = _compat.distributed_state()
    if state is None or named == (state.process, state.processes, state.coordinator):
        return named
    _native.name_process(state.process, state.processes, state.coordinator)
    return state.process, state.processes, state.coordinator


def _warn() -> None:
    for sentence in _native.take_warnings():
        logger.warning("%s", sentence)


def _warn_of_stalls() -> None:
    while not _stop.is_set():
        sentence = _native.next_stall(_LONG_S)
        if sentence is not None and not _stop.is_set():
            logger.warning("process %d %s", jax.process_index(), sentence)


def _answer(planner: Planner, request: _native.PlanRequest) -> None:
    try:
        request.resolve(planner.plan(request))
    except Exception as error:
        # A wait that Ctrl-C has ended needs no warning: KeyboardInterrupt says so, or the launcher of the job does.
        interrupted = was_ended(error) or (isinstance(error, JaxringError) and ending.is_reported_by_launcher())
        level = logging.INFO if interrupted else logging.WARNING
        text = "jaxring: a collective could not be planned: %s"
        logger.log(level, text, error, exc_info=not isinstance(error, JaxringError))
        code = _UNAVAILABLE if isinstance(error, JaxringError) else _INTERNAL
        code = _INVALID_ARGUMENT if isinstance(error, (ValueError, TypeError)) else code
        code = _RESOURCE_EXHAUSTED if isinstance(error, MemoryError) else code
        request.reject(code, f"jaxring: {error}")


def _end() -> None:
    """Runs before the interpreter and JAX's backend end: operations that wait for peers must not delay them."""
    _stop.set()
    # After an uncaught exception peers get its text, so that they do not take this for an orderly end.
    uncaught = ending.uncaught(_hint)
    _warn()
    if getattr(sys, "last_type", None) is KeyboardInterrupt and _job.joined():
        end_soon()
    if uncaught and (_native.troubled() or _native.counters()["failures"]):
        if not settings().trace_dir:
            state = _compat.distributed_state()
            make_room(1 if state is None else state.processes)
        _native.dump_now(say=not ending.is_reported_by_launcher())  # the record in memory is lost with the process
    _native.abort(f"this process is ending{uncaught}", _ABORT_S, not uncaught, uncaught or ending.orderly())
    if _thread is not None:
        _thread.join(timeout=2 * _POLL_S)
    _watcher.stop(2 * _POLL_S)
    if _stalls is not None:
        # It has been woken and waits for nothing else. A thread that returned later would find no interpreter.
        _stalls.join(timeout=_STALLS_END_S)
    daemons.join(2 * _POLL_S)
