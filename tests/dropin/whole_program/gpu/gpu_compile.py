"""gpu_compile.py FOLDER: compiles programs by JAX's CUDA plugin for four H100s, without one, and writes what becomes of
them to FOLDER.

For each program of PROGRAMS: NAME.txt, the final program; NAME.explain; and NAME.thunks, the steps that the executable
takes. For each of PLAYED: NAME.pb, the small program's module as the transformation has left it, every collective of
which is started where anything lies beside it.

TEST_CUDA_PLUGIN names the folder that jax and its plugin are in, TEST_CUDA_FAKE the built _native_cuda_fake, whose
handlers XLA asks for what they are. `make gpu-programs` sees to both.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from jax.experimental import topologies

import jaxring
from jaxring.dropin import whole_program
from jaxring.dropin.whole_program.gpu import overlap
from jaxring.dropin.whole_program.transformation import transform
from jaxring.runtime import service
from jaxring.runtime.cuda import service as cuda_service
from jaxring.runtime.cuda.communicators import Devices
from tests.dropin.whole_program.gpu.gpu_programs import LARGE, PLAYED, PROGRAMS, RANKS, SMALL, Programs

GPU = "NVIDIA H100 80GB HBM3"


def fake_engine():
    """Registers the handlers with the plugin, and starts the engine that they ask for; nothing is run."""
    spec = importlib.util.spec_from_file_location("_native_cuda_fake", os.environ["TEST_CUDA_FAKE"])
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    cuda_service.register_targets(native, service.GPU_TARGETS)
    native.fake_options(devices=RANKS)
    numbers = {n: n for n in range(RANKS)}
    cuda_service.ensure_started(native, lambda module: Devices("cpu", numbers, numbers))


def target_config(gpu: str) -> str:
    """XLA's description of a GPU, a text that the plugin holds among others."""
    (library,) = Path(os.environ["TEST_CUDA_PLUGIN"]).glob("jax_plugins/xla_cuda1[0-9]/xla_cuda_plugin.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(f'device_description_str: "{gpu}"'.encode())
        assert at >= 0, f"{library} does not describe the {gpu}"
        return data[data.rfind(b"\0", 0, at) + 1 : data.find(b"\0", at)].decode()


def compiled(folder: Path, name: str, devices: list) -> None:
    function, arguments = getattr(Programs(devices, LARGE), name)()
    dump = folder / name
    options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
    executable = jax.jit(function).lower(*arguments).compile(compiler_options=options)
    (folder / f"{name}.txt").write_text(executable.as_text())
    (folder / f"{name}.explain").write_text(jaxring.explain(executable))
    # There is a second file if passes have changed the sequence, as the one that makes command buffers does.
    sequences = sorted(dump.glob("*jit_*.thunk_sequence*.txt"), key=lambda file: "after" in file.name)
    (folder / f"{name}.thunks").write_text(sequences[-1].read_text())


def transformed(name: str, devices: list, monkeypatched: dict) -> bytes:
    """What the transformation makes of the small program. The rest of the compilation is left out."""
    function, arguments = getattr(Programs(devices, SMALL), name)()
    lowered = jax.jit(function).lower(*arguments)
    monkeypatched["last"] = None
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "that is enough" not in str(error):
            raise
    return monkeypatched["last"]


def main() -> None:
    folder = Path(sys.argv[1])
    jax.devices()  # JAX looks for plugins
    fake_engine()
    topology = topologies.get_topology_desc("", "cuda", target_config=target_config(GPU), topology=f"1x1x{RANKS}")
    devices = topology.devices
    with jaxring.installed(whole_program=True):
        for name in PROGRAMS:
            compiled(folder, name, devices)
    assert "jaxring" not in final(devices), "uninstalled, and programs still hold its calls"
    seen: dict = {}

    def stop(data, on_gpus=False):
        seen["last"] = transform(data, on_gpus)
        raise RuntimeError("that is enough")

    overlap._LEAST_BYTES = 1
    whole_program.transform = stop
    with jaxring.installed(whole_program=True):
        for name in PLAYED:
            (folder / f"{name}.pb").write_bytes(transformed(name, devices, seen))


def final(devices: list) -> str:
    """A program without jaxring."""
    function, arguments = Programs(devices, SMALL).apart()
    return jax.jit(function).lower(*arguments).compile().as_text()


if __name__ == "__main__":
    main()
