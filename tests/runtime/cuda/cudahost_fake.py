"""Runs JAX's CPU programs on the CUDA engine's host half, with the fake GPU below it.

To be imported before jaxring, in a process of its own: the custom calls of the CPU engine are left out and those of
_native_cuda_fake take their place. TEST_CUDA_FAKE names the built module; `make pytest` sees to it.
"""

from __future__ import annotations

import importlib.util
import os

os.environ.setdefault("PJRT_NPROC", "64")

import jax

FAKE = os.environ["TEST_CUDA_FAKE"]
GPUS = 2
# A shim's thread is a fiber: few are enough.
THREADS = 64


def _load():
    spec = importlib.util.spec_from_file_location("_native_cuda_fake", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = _load()
_register = jax.ffi.register_ffi_target
jax.ffi.register_ffi_target = lambda name, *args, **kwargs: None
import jax.interpreters.mlir  # noqa: E402

import jaxring  # noqa: E402
from jaxring import overlap  # noqa: E402
from jaxring.runtime import service  # noqa: E402
from jaxring.runtime.cuda import service as cuda_service  # noqa: E402
from jaxring.runtime.cuda.communicators import Devices  # noqa: E402
from jaxring.tracing.lowering import platforms  # noqa: E402

jax.ffi.register_ffi_target = _register
jax.interpreters.mlir.register_lowering(overlap.done_p, overlap.lower_on_gpu, platform="cpu", cacheable=False)
cuda_service.register_targets(native, service.GPU_TARGETS, platform="cpu")
platforms.for_cpus = lambda ctx: False


def _devices(module) -> Devices:
    """Dealt to the GPUs in turn; each process begins with the first, or with as many as there are behind the last's."""
    local = jax.local_devices(backend="cpu")
    first = jax.process_index() * len(local) if module.device_count() > GPUS else 0
    gpus = {d.id: (first + n) % module.device_count() for n, d in enumerate(local)}
    return Devices("cpu", {d.id: d.id for d in local}, gpus)


def configure(process: int, processes: int, devices: int, port: int, survive: bool) -> None:
    """CPU devices that stand for GPUs; ``survive``: other processes' ends."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        jax.config.update("jax_enable_recoverability", survive)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)


def start(apart=False, **options) -> None:
    """Starts the engine on a fake GPU that does what ``options`` say; after jax.distributed, before any collective.

    ``apart``: there is a GPU for each rank.
    """
    native.fake_options(devices=jax.device_count() if apart else GPUS, **options)
    cuda_service.ensure_started(native, _devices, THREADS)


__all__ = ["jaxring", "native", "start"]
