"""Build, test and measure the CUDA engine on a machine with a GPU: stages, each a process with a time limit.

    python -m benchmarks.gpu --out DIR

jaxring itself may not be built yet, and then nothing of it can be imported: this file and `summary.py` need the
standard library only. Downloads nothing. A stage that fails or takes too long does not stop the others, and what a
stage says is in the folder at once: raw.txt (all output), workers/ (that of each process of JAX's tests), rows.jsonl
(measurements), stages.json (how each stage ended), SUMMARY.md. Exits with 1 where a stage failed, with 2 where there is
no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime as dt
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.gpu import summary

ROOT = pathlib.Path(__file__).parents[2]
# Under it no stage is begun.
_LEAST_S = 5.0
_KILL_AFTER_S = 5.0
_TAIL_BYTES = 600
# From so many cores on the CPU engine is measured, too.
_CPU_SUITE_CORES = 16
_CORES_OF_A_JOB = 4


@dataclasses.dataclass(frozen=True)
class Stage:
    """A command with its limit in seconds. ``why_not``: the reason for which it is left out, if any."""

    name: str
    seconds: float
    command: tuple[str, ...]
    why_not: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def gpus() -> int:
    """NVIDIA GPUs that this process sees; 0 without a driver."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def card() -> str:
    """A short name of the first GPU, such as h200, for the folder of its results."""
    name = ctypes.create_string_buffer(100)
    device = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, len(name), device):
        return "gpu"
    return short_name(name.value.decode())


def short_name(name: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``h100``; all words where none is a letter with a number."""
    words = name.lower().replace("nvidia", "").split()
    models = [word for word in words if re.fullmatch(r"[a-z]+\d+[a-z]*", word)]
    return models[0] if models else "-".join(re.sub(r"[^a-z0-9]", "", word) for word in words) or "gpu"


def stages(out: pathlib.Path, scratch: pathlib.Path) -> list[Stage]:
    """All stages in their order: JAX once, kernels and memory without JAX, speed, all under JAX, deaths, checkers, and
    the CPU engine."""
    python = sys.executable
    ends = importlib.machinery.EXTENSION_SUFFIXES  # of modules that this Python can import
    build = ROOT / "build" / "gpu"
    source = "" if (ROOT / "CMakeLists.txt").exists() else "this is no checkout"
    built = all(
        any((ROOT / "jaxring" / f"{name}{end}").exists() for end in ends) for name in ("_native", "_native_cuda")
    )
    rows = ("--rows", str(out / "rows.jsonl"))
    measure = (python, "-m", "benchmarks.gpu.measure")
    peers = (python, "-m", "benchmarks.gpu.peers")
    worker = (python, str(ROOT / "tests" / "runtime" / "cuda" / "cudahost_worker.py"))
    tests = (
        python,
        "-m",
        "pytest",
        "-v",
        "--durations=0",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",  # where pytest-benchmark is installed, it warns of xdist, which is an error here
        *_side_by_side(),
        str(ROOT / "tests" / "gpu"),
        "-m",
        "gpu",
        "-k",
    )
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    unchecked = source or ("" if pathlib.Path(checker).exists() else "there is no compute-sanitizer here")
    schedules = scratch / "schedules.bin"

    def native(test: str, *cases: str, under: Sequence[str] = ()) -> tuple[str, ...]:
        dump = shlex.join((python, str(ROOT / "tools" / "dump_schedules.py"), str(schedules)))
        run = f"TEST_SCHEDULES={shlex.quote(str(schedules))} {shlex.join((*under, str(build / test), *cases))}"
        return ("bash", "-c", f"{dump} && {run}")

    def check(tool: str) -> tuple[str, ...]:
        return (checker, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all")

    def job(case: str) -> tuple[str, ...]:
        return (python, "-m", "benchmarks.gpu.job", case, "2", "1")

    small = ("--ranks", "2", "--sizes", "32K", "--lanes", "2", "--launches", "1")
    jobs = {
        "TEST_OUTPUT": str(out / "workers"),
        "TEST_JOB_SECONDS": "60",
        "TEST_JOB_TIMEOUT": "15",
    }
    # Deaths and checkers last: they are the least certain, and must not keep anything else from running.
    quick = ("one_process", "one_node", "four_processes", "network", "graphs", "other_order")
    memory = ("virtual_memory", "captured_first", "staged", "legacy_ipc", "copies")
    return [
        Stage("machine", 30, ("bash", "-c", _MACHINE.format(python=shlex.quote(python)))),
        Stage(
            "build",
            330,
            ("bash", "-c", _build(python, build)),
            source or _already(built and (build / "cuda_gpu_test").exists()),
        ),
        Stage("info", 30, (python, "-c", "import jaxring; print(jaxring.build_info())")),
        Stage("jax_smoke", 60, job("smoke"), source, jobs),
        Stage("native", 100, native("cuda_gpu_test", "--apart=30", *quick), source),
        Stage("memory", 60, native("cuda_gpu_memory_test", "--apart=20", *memory), source),
        Stage("matrix", 120, (*worker, "matrix", "0", "1", "1", "0"), source),
        Stage("measure", 150, (*measure, *rows)),
        Stage("measure_graphs", 90, (*measure, "--graphs", "--ranks", "8,2", "--sizes", "32K,1M,256M", *rows)),
        Stage("jnp", 60, (*peers, "jnp", *rows)),
        # NCCL reads how many multiprocessors a rank may take once for a process.
        *(Stage(f"nccl_{n}", 30, (*peers, "nccl", "--ranks", str(n), *rows)) for n in (8, 2, 4)),
        Stage("jax", 200, (*tests, "not one_process and not replays and not ends and not served"), source, jobs),
        Stage("replays_jax", 120, (*tests, "replays"), source, jobs),
        Stage("deaths", 60, native("cuda_gpu_test", "--apart=30", "death"), source),
        Stage("copy_deaths", 60, native("cuda_gpu_memory_test", "--apart=30", "death"), source),
        Stage("deaths_jax", 120, (*tests, "ends or served"), source, jobs),
        Stage("memcheck", 90, (*check("memcheck"), *measure, *small), unchecked),
        # One rank for each process: a checker may let a process's kernels run one after another only.
        Stage("memcheck_processes", 90, native("cuda_gpu_test", "four_processes", under=check("memcheck")), unchecked),
        Stage("racecheck", 120, native("cuda_gpu_test", "four_processes", under=check("racecheck")), unchecked),
        # What is left of the time, on the many cores that such machines have; by itself it fits --stages cpu.
        Stage(
            "cpu",
            560,
            (python, "-m", "benchmarks.cpu", "--out", str(out / "cpu")),
            source or ("" if (os.cpu_count() or 1) >= _CPU_SUITE_CORES else f"fewer than {_CPU_SUITE_CORES} cores"),
            {"JAX_PLATFORMS": "cpu"},
        ),
    ]


def _side_by_side() -> tuple[str, ...]:
    """Options with which pytest runs jobs beside each other: most of a job's time, its processes start and compile."""
    jobs = (os.cpu_count() or 1) // _CORES_OF_A_JOB
    return ("-n", str(jobs)) if jobs > 1 and importlib.util.find_spec("xdist") else ()


def _already(built: bool) -> str:
    return "it is built already: remove jaxring/_native*.so to have it built again" if built else ""


_MACHINE = """nvidia-smi; nvidia-smi topo -m; nvcc --version; uname -a; nproc
{python} -c 'import sys, jax, jaxlib, numpy; print(sys.version, jax.__version__, jaxlib.__version__, numpy.__version__)'
git rev-parse HEAD || true"""


def _build(python: str, build: pathlib.Path) -> str:
    cmake = "cmake" if shutil.which("cmake") else f"{shlex.quote(python)} -m cmake"
    folder, root = shlex.quote(str(build)), shlex.quote(str(ROOT))
    headers = os.environ.get("JAXRING_FFI_INCLUDE", "")
    given = f"-DJAXRING_FFI_INCLUDE={shlex.quote(headers)} " if headers else ""
    return (
        f"{cmake} -S {root} -B {folder} -G Ninja -DPython_EXECUTABLE={shlex.quote(python)} -DJAXRING_CUDA=ON "
        f"{given}&& "
        f"{cmake} --build {folder} --target _native _native_cuda cuda_gpu_test cuda_gpu_memory_test && "
        f"cp {folder}/_native*.so {root}/jaxring/"
    )


def run_stages(chosen: Sequence[Stage], out: pathlib.Path, limit: float) -> list[dict[str, object]]:
    """Run the stages for `limit` seconds in all; what each did is written to the folder before the next begins."""
    begun = time.monotonic()
    ended: list[dict[str, object]] = []
    for stage in chosen:
        left = limit - (time.monotonic() - begun)
        record: dict[str, object] = {"stage": stage.name}
        if stage.why_not:
            record["left_out"] = stage.why_not
        elif left < _LEAST_S:
            record["left_out"] = "no time left"
        else:
            record |= _run(stage, out, min(stage.seconds, left))
        ended.append(record)
        (out / "stages.json").write_text(json.dumps(ended, indent=1) + "\n")
        summary.write(out)
        how = record.get("left_out") or f"exit {record['exit']} after {record['seconds']} s"
        print(f"{stage.name}: {how}", flush=True)
        if record.get("exit", 0) != 0:
            print(record["tail"], flush=True)
    return ended


def _run(stage: Stage, out: pathlib.Path, seconds: float) -> dict[str, object]:
    now = dt.datetime.now(dt.UTC).strftime("%FT%TZ")
    with (out / "raw.txt").open("a") as raw:
        raw.write(f"\n######## {stage.name} {now}: {shlex.join(stage.command)}\n")
        raw.flush()
        begin, at = time.monotonic(), raw.tell()
        process = subprocess.Popen(
            stage.command,
            stdin=subprocess.DEVNULL,
            stdout=raw,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**_environment(), **stage.environment},
            start_new_session=True,  # so that what it started ends with it
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = _end(process)
        except BaseException:  # Ctrl-C, which does not reach another session
            _end(process)
            raise
    took = time.monotonic() - begin
    with (out / "raw.txt").open("rb") as raw_bytes:
        raw_bytes.seek(0, os.SEEK_END)
        raw_bytes.seek(max(at, raw_bytes.tell() - _TAIL_BYTES))
        tail = raw_bytes.read().decode(errors="replace")
    return {"exit": code, "seconds": round(took, 1), "cut_off": took >= seconds, "tail": tail}


def _end(process: subprocess.Popen[bytes]) -> int:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    return process.wait()


def _environment() -> dict[str, str]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAXRING_TIMEOUT": "30",
        # XLA takes three quarters of a GPU otherwise, and processes share one.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Ranks of a process that share a GPU are streams, and streams that share a queue would wait for each other.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        **os.environ,
        # CMake and ninja may be this Python's packages.
        "PATH": os.pathsep.join((os.environ.get("PATH", ""), str(pathlib.Path(sys.executable).parent))),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a stage failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder for what the suite writes")
    parser.add_argument("--limit", type=float, default=570, metavar="S", help="seconds for the suite (default: 570)")
    parser.add_argument("--stages", default="", metavar="LIST", help="only these stages, such as build,native")
    arguments = parser.parse_args(argv)
    return suite(arguments.out, arguments.limit, arguments.stages)


def suite(out: pathlib.Path | None, limit: float, names: str) -> int:
    """Run the suite; ``out``: by default a folder with the card's name and today's date. Returns the exit code."""
    if gpus() == 0:
        print("There is no NVIDIA GPU here, which the suite needs.", file=sys.stderr)
        return 2
    folder = (out or ROOT / "docs" / "benchmarks" / card() / dt.date.today().isoformat()).absolute()
    scratch = ROOT / "build" / "gpu"
    for each in (folder, scratch):
        each.mkdir(parents=True, exist_ok=True)
    every = stages(folder, scratch)
    asked = [name for name in names.split(",") if name]
    unknown = set(asked) - {stage.name for stage in every}
    if unknown:
        known = ", ".join(stage.name for stage in every)
        print(f"There is no stage {sorted(unknown)[0]!r}; there are {known}.", file=sys.stderr)
        return 2
    chosen = [stage for stage in every if not asked or stage.name in asked]
    ended = run_stages(chosen, folder, limit)
    print(f"{folder / 'SUMMARY.md'}", flush=True)
    return int(any(record.get("exit", 0) != 0 for record in ended))
