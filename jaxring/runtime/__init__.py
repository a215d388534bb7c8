"""Connects JAX with the engine: starts it, answers its planning requests, and records the decisions."""

from __future__ import annotations

from typing import Any

import jaxring._native as _native
from jaxring.runtime import service
from jaxring.runtime.cuda.service import native_module
from jaxring.runtime.explain import Decision, plans
from jaxring.runtime.service import ensure_started, register_targets

__all__ = ["Decision", "build_info", "counters", "ensure_started", "plans"]


def build_info() -> dict[str, Any]:
    """What was compiled in: versions, compiler, the CPU instruction set in use.

    Returns:
        By name. ``cuda_version``, ``cuda_architectures``, ``cuda_transports`` (not which of them this machine has) and
        ``nvtx`` (the version whose ranges name launches in profiles) are those of the CUDA engine (experimental: it has
        run on one GPU only), "" where jaxring was built without it.
    """
    cuda = native_module()
    without = dict.fromkeys(("cuda_version", "cuda_architectures", "cuda_transports", "nvtx"), "")
    return {**_native.build_info(), **(without if cuda is None else cuda.build_info())}


def counters() -> dict[str, int]:
    """Counts since the engines started: operations, failures, sleeps, bytes of links and of unexpected messages.

    Returns:
        By name. ``sent_bytes`` are those that this process's ranks have sent to ranks of other processes, by whichever
        transport, in operations that have ended: what they carry, without headers. ``moves`` counts how often a waiting
        thread moved to a processor on which no peer waits. ``unexpected_bytes`` are those of messages that wait for
        their operation outside of the rings; ``stashed_bytes`` is the former name, which stays for one release.
        ``connections`` counts the connections to this process's listener in this epoch of the job, ``refused`` those of
        them that did not authenticate. The names of the CUDA engine (experimental: it has run on one GPU only) begin
        with ``cuda_``; they are there once it has started.

    Examples:
        What a step of training sends:

            before = jaxring.counters()["sent_bytes"]
            step(params, batch)
            print(jaxring.counters()["sent_bytes"] - before, "bytes to other processes")
    """
    cuda = native_module()
    counted = {} if cuda is None else {f"cuda_{name}": value for name, value in cuda.counters().items()}
    came, refused = service.job().connections()
    return {**_native.counters(), "connections": came, "refused": refused, **counted}


register_targets()
