"""What `jaxring --version` prints: what is installed, which engines it has, and which transports they find here."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform

from jaxring import _native
from jaxring.world.transports import TRANSPORTS


def sentence() -> str:
    """One line. Imports no jax, which takes a second: the versions are those that are installed."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jaxring", "jax", "jaxlib")]
    parts = [f"{', '.join(versions)}, Python {platform.python_version()}", _engines()]
    transports = ", ".join(each.found(_native) for each in TRANSPORTS.values())
    return "; ".join([*parts, f"transports {transports}"])


def _engines() -> str:
    try:
        info = importlib.import_module("jaxring._native_cuda").build_info()
    except ImportError:
        return "CPU engine, no CUDA engine"
    return f"CPU engine, CUDA engine built with CUDA {info['cuda_version']} ({info['cuda_transports']})"
