"""What `jaxring --version` prints: what is installed, which engines it has, and which transports they find here."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform

from jaxring import _native


def sentence() -> str:
    """One line. Imports no jax, which takes a second: the versions are those that are installed."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jaxring", "jax", "jaxlib")]
    parts = [f"{', '.join(versions)}, Python {platform.python_version()}", _engines()]
    return "; ".join([*parts, f"transports shared memory, TCP, {_tls()}, {_rdma()}, NCCL's network plugins"])


def _engines() -> str:
    try:
        info = importlib.import_module("jaxring._native_cuda").build_info()
    except ImportError:
        return "CPU engine, no CUDA engine"
    return f"CPU engine, CUDA engine built with CUDA {info['cuda_version']} ({info['cuda_transports']})"


def _tls() -> str:
    try:
        return f"TLS by {' '.join(_native.tls_load().split()[:2])}"
    except RuntimeError:
        return "no TLS (no libssl here)"


def _rdma() -> str:
    ports, _ = _native.verbs_ports()
    count = len(ports)
    return f"RDMA ({count} port{'s' * (count > 1)})" if ports else "no RDMA (no port here)"
