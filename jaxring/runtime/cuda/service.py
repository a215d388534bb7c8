"""Starts the CUDA engine: its module and its custom calls; and what the planning thread does for it.

The engine starts when a program with a collective is loaded on a GPU, not before: importing jaxring starts no backend.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading
from typing import Any

import jax

import jaxring._native as _native
from jaxring.errors import JaxringError
from jaxring.runtime.cuda import xla_settings
from jaxring.runtime.cuda.communicators import Devices
from jaxring.runtime.cuda.planner import CudaPlanner
from jaxring.settings import settings
from jaxring.world import daemons

logger = logging.getLogger("jaxring.runtime")

_INVALID_ARGUMENT, _INTERNAL, _UNAVAILABLE = 3, 13, 14
# Threads of a lane: enough for one block to keep a multiprocessor's memory pipes full.
_THREADS = 384
_lock = threading.Lock()
_started: Any = None
_planner: CudaPlanner | None = None
_devices: Devices | None = None
_stop = threading.Event()


def native_module() -> Any:
    """The module jaxring._native_cuda, or None where jaxring was built without CUDA."""
    try:
        return importlib.import_module("jaxring._native_cuda")
    except ModuleNotFoundError:
        return None


def register_targets(native: Any, targets: tuple[str, ...], platform: str = "CUDA") -> None:
    """Registers the custom calls for GPUs with XLA. Needs no backend, no driver and no GPU."""
    handlers = native.handlers()
    for target in targets:
        name = target.removeprefix("jaxring_").removeprefix("uncaptured_")
        kind = name.split("_")[0]
        kind = kind if kind in ("done", "join", "start", "ragged") else "collective"
        execute = handlers[("uncaptured_" if target.startswith("jaxring_uncaptured_") else "") + kind]
        sited = kind not in ("done", "join")
        stages = {"instantiate": handlers["instantiate"], "execute": execute} if sited else execute
        jax.ffi.register_ffi_target(target, stages, platform=platform)


def abort(reason: str) -> bool:
    """Ends the GPU engine's work, and its peers', for good; False where this process has not used it."""
    if _started is None:
        return False
    _stop.set()
    _started.abort(reason, True)
    _log_faults(_started)
    return True


def bus_ids() -> list[str]:
    """The PCI bus ids of this process's GPUs, where JAX and jaxring have found any. Starts JAX's backend."""
    native = native_module() if _started is None else _started
    if native is None:
        return []
    try:
        devices = cuda_devices(native) if _devices is None else _devices
    except RuntimeError:  # JAX has no such backend
        return []
    try:
        return [native.device(gpu).busid for gpu in devices.gpus.values()]
    except RuntimeError as error:
        # Collectives of CPUs ask, too, and need no GPU.
        logger.warning("RDMA ports are not sorted by their distance from GPUs, which CUDA does not describe: %s", error)
        return []


def cuda_devices(native: Any) -> Devices:
    """This process's GPUs as JAX and the CUDA runtime number them. Starts JAX's backend."""
    del native
    local = jax.local_devices(backend="cuda")
    numbers = {d.id: d.id if d.local_hardware_id is None else int(d.local_hardware_id) for d in local}
    return Devices("cuda", {number: device for device, number in numbers.items()}, numbers)


def prepare_lowering() -> None:
    """Called where a collective is lowered for GPUs: brings the engine up if this process has any.

    RuntimeError where it has GPUs and jaxring was built without CUDA. A process without GPUs lowers for others.
    """
    try:
        if not jax.local_devices(backend="cuda"):
            return
    except RuntimeError:
        return
    native = native_module()
    if native is None:
        raise RuntimeError("jaxring was built without CUDA: install a build with it, or run this on CPU devices")
    ensure_started(native)


def started() -> bool:
    """Whether this process has the CUDA engine, whose requests the planning thread is to answer at once."""
    return _started is not None


def ensure_started(native: Any, find_devices: Any = cuda_devices, threads: int = _THREADS) -> None:
    """Starts the engine, once. Called while a program is lowered for GPUs, so the backend is there.

    SettingsError for settings of XLA that it cannot work with.
    """
    global _started, _planner, _devices
    with _lock:
        if _started is not None:
            return
        configured = settings()
        devices = find_devices(native)
        gpus = set(devices.gpus.values())
        xla_settings.check(os.environ, jax.process_count(), len(gpus), configured.p2p[0])
        native.start(jax.process_index(), _native.network(), bool(configured.checksum))
        for gpu in sorted(gpus):
            native.prepare(gpu)
        atexit.register(_end, native)
        _planner, _devices = CudaPlanner(native, devices, threads), devices
        _started = native


def serve() -> None:
    """What the planning thread does each time that it has been woken: logs new faults, and has requests answered."""
    native, planner = _started, _planner
    if native is None or planner is None or _stop.is_set():
        return
    _log_faults(native)
    while (request := native.next_request()) is not None:
        # Every plan may wait for other processes, which may plan in another order.
        try:
            daemons.start("jaxring-plan", _answer, planner, request)
        except RuntimeError as error:  # the system has no thread left
            request.reject(_UNAVAILABLE, f"jaxring: {error}")
        del request


def _answer(planner: CudaPlanner, request: Any) -> None:
    try:
        if request.group < 0:
            planner.identify(request)
            return
        request.resolve(*planner.plan(request))
    except Exception as error:
        logger.warning("planning for GPUs failed: %s", error, exc_info=not isinstance(error, JaxringError))
        code = _UNAVAILABLE if isinstance(error, JaxringError) else _INTERNAL
        code = _INVALID_ARGUMENT if isinstance(error, (ValueError, TypeError)) else code
        request.reject(code, f"jaxring: {error}")


def _log_faults(native: Any) -> None:
    for text in native.take_faults():
        logger.error("%s", text)


def _end(native: Any) -> None:
    """Runs before jaxring.runtime.service has the network say goodbye to the other processes."""
    _stop.set()
    native.abort("this process is ending", False)
    # Log the fault before the operation that it fails can end the program.
    _log_faults(native)
