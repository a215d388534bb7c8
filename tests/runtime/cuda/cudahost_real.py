"""What cudahost_fake offers, with real GPUs: several processes may share one."""

from __future__ import annotations

import os

# Ranks of a process that share a GPU are streams there, and streams that share a queue would wait for each other.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
# XLA takes three quarters of a GPU otherwise, and the processes of a test share one.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

import jaxring
import jaxring._native as _native
import jaxring._native_cuda as native

THREADS = 384


def configure(process: int, processes: int, devices: int, port: int, survive: bool) -> None:
    """``devices`` GPUs for each process, the same ones where there are fewer; ``survive``: other processes' ends."""
    jax.config.update("jax_platforms", "cuda,cpu")
    gpus = [(process * devices + n) % native.device_count() for n in range(devices)]
    if processes > 1:
        jax.config.update("jax_enable_recoverability", survive)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, local_device_ids=gpus)
    else:
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, gpus)))


def start(**options) -> None:
    """The engine starts by itself when a collective is lowered; without JAX, by this."""
    assert not options


def start_alone() -> None:
    """Starts the engine for standalone runs, without XLA."""
    native.start(0, _native.network())


__all__ = ["jaxring", "native", "start"]
