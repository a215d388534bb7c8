"""What the CUDA engine's all-reduce is held against on the same GPU: `jnp` on stacked arrays, and NCCL.

    python -m benchmarks.gpu.peers jnp|nccl --rows rows.jsonl

A line of JSON for each number of ranks and size, written as it is measured. NCCL from 2.30 on lets several ranks
share a GPU; an older one is named and left out. ``NCCL_LIBRARY`` names another one than the installed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.rows import Write

_MULTI_RANK = 23000
_MULTIPROCESSOR_COUNT = 16
_FLOAT32, _SUM = 7, 0


def measure_jnp(counts: Sequence[int], sizes: Sequence[int], launches: int, write: Write) -> None:
    """Sums over the leading axis of (ranks, elements) float32: to one result, and to as many as there are ranks."""
    import jax
    import jax.numpy as jnp

    def to_one(x: jax.Array) -> jax.Array:
        return x.sum(0)

    def to_all(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x.sum(0), x.shape)

    for count in counts:
        for nbytes in sizes:
            x = jnp.ones((count, max(1, nbytes // 4)), jnp.float32)
            times = rows.launches_of(launches, nbytes)
            for function in (to_one, to_all):
                run = jax.jit(function)
                run(x).block_until_ready()
                begin = time.perf_counter()
                result = x
                for _ in range(times):
                    result = run(x)
                result.block_until_ready()
                us = (time.perf_counter() - begin) / times * 1e6
                write({"kind": "jnp", "what": function.__name__, "ranks": count, "bytes": nbytes, "us": us})


class _Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


def find_nccl() -> str:
    """The path of NCCL's library: of NCCL_LIBRARY, from its wheel, or its bare name for the loader."""
    if given := os.environ.get("NCCL_LIBRARY"):
        return given
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder) / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return "libnccl.so.2"


class _Checked:
    """A library whose functions return 0 or an error: RuntimeError names which one failed."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def __call__(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} returned {error}")


def measure_nccl(counts: Sequence[int], sizes: Sequence[int], launches: int, write: Write) -> None:
    """All-reduces of float32 by NCCL, all ranks in this process and on GPU 0."""
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    try:
        nccl = _Checked(find_nccl())
    except OSError as error:
        write({"kind": "nccl", "left_out": f"there is no NCCL here: {error}"})
        return
    version = ctypes.c_int()
    nccl("ncclGetVersion", ctypes.byref(version))
    if version.value < _MULTI_RANK:
        text = f"NCCL {version.value} allows one rank on a GPU; several are allowed from 2.30 on"
        write({"kind": "nccl", "left_out": text})
        return
    cuda = _Checked("libcuda.so.1")
    context = ctypes.c_void_p()
    cuda("cuInit", 0)
    # All blocks of the ranks that share a GPU must be resident together, and NCCL does not see to that.
    multiprocessors = ctypes.c_int()
    cuda("cuDeviceGetAttribute", ctypes.byref(multiprocessors), _MULTIPROCESSOR_COUNT, 0)
    os.environ.setdefault("NCCL_MAX_CTAS", str(max(1, multiprocessors.value // max(counts))))
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    cuda("cuCtxSetCurrent", context)
    for count in counts:
        try:
            _measure_nccl_ranks(nccl, cuda, count, sizes, launches, version.value, write)
        except RuntimeError as error:
            write({"kind": "nccl", "ranks": count, "error": str(error)})


def _measure_nccl_ranks(
    nccl: _Checked, cuda: _Checked, count: int, sizes: Sequence[int], launches: int, version: int, write: Write
) -> None:
    name = _Id()
    nccl("ncclGetUniqueId", ctypes.byref(name))
    communicators = [ctypes.c_void_p() for _ in range(count)]
    streams = [ctypes.c_void_p() for _ in range(count)]
    nccl("ncclGroupStart")
    for rank in range(count):
        nccl("ncclCommInitRank", ctypes.byref(communicators[rank]), count, name, rank)
    nccl("ncclGroupEnd")
    memory = [(ctypes.c_uint64(), ctypes.c_uint64()) for _ in range(count)]
    for rank in range(count):
        cuda("cuStreamCreate", ctypes.byref(streams[rank]), 1)
        for pointer in memory[rank]:
            cuda("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(sizes)))

    def launch(nbytes: int) -> None:
        nccl("ncclGroupStart")
        for rank in range(count):
            given, result = (ctypes.c_void_p(pointer.value) for pointer in memory[rank])
            elements = ctypes.c_size_t(nbytes // 4)
            nccl("ncclAllReduce", given, result, elements, _FLOAT32, _SUM, communicators[rank], streams[rank])
        nccl("ncclGroupEnd")

    def wait() -> None:
        for stream in streams:
            cuda("cuStreamSynchronize", stream)

    for nbytes in sizes:
        times = rows.launches_of(launches, nbytes)
        launch(nbytes)
        wait()
        begin = time.perf_counter()
        for _ in range(times):
            launch(nbytes)
        wait()
        us = (time.perf_counter() - begin) / times * 1e6
        write({"kind": "nccl", "version": version, "ranks": count, "bytes": nbytes, "us": us})
    for rank in range(count):
        for pointer in memory[rank]:
            cuda("cuMemFree_v2", pointer)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("jnp", "nccl"))
    rows.add_arguments(parser)
    given = parser.parse_args(argv)
    function = {"jnp": measure_jnp, "nccl": measure_nccl}[given.peer]
    function(given.ranks, given.sizes, given.launches, rows.writer(given.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
