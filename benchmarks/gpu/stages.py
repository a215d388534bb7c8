"""The stages of the suite: what each runs, and for how many seconds at most. Needs the standard library only."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[2]
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
    calls = (python, "-m", "benchmarks.gpu.calls", *rows)
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
    quick = ("one_process", "one_domain", "four_processes", "network", "graphs", "other_order")
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
        Stage("calls", 60, calls),
        Stage(
            "calls_mps",
            60,
            ("bash", "-c", _UNDER_MPS.format(command=shlex.join(calls))),
            "" if shutil.which("nvidia-cuda-mps-control") else "there is no nvidia-cuda-mps-control here",
        ),
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


# A control daemon of its own, in a folder of its own, which ends with the stage.
_UNDER_MPS = """folder=$(mktemp -d); export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
nvidia-cuda-mps-control -d || exit
{command}; code=$?
echo quit | timeout 10 nvidia-cuda-mps-control; rm -rf "$folder"; exit $code"""


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
