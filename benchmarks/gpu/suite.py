"""Build, test and measure the CUDA engine on a machine with a GPU: stages, each a process with a time limit.

    python -m benchmarks.gpu --out DIR

jaxring itself may not be built yet, and then nothing of it can be imported: this file, `stages.py` and `summary.py`
need the standard library only. Downloads nothing. A stage that fails or takes too long does not stop the others, and
what a stage says is in the folder at once: raw.txt (all output), workers/ (that of each process of JAX's tests),
rows.jsonl (measurements), stages.json (how each stage ended), SUMMARY.md. Exits with 1 where a stage failed, with 2
where there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime as dt
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.gpu import summary
from benchmarks.gpu.stages import ROOT, Stage, stages

# Under it no stage is begun.
_LEAST_S = 5.0
_KILL_AFTER_S = 5.0
_TAIL_BYTES = 600


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
        "JAXRING_P2P": "shared",
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
    parser.add_argument("--stages", default="", metavar="LIST", help="only these, in this order: build,native")
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
    chosen = [next(stage for stage in every if stage.name == name) for name in asked] or every
    ended = run_stages(chosen, folder, limit)
    print(f"{folder / 'SUMMARY.md'}", flush=True)
    return int(any(record.get("exit", 0) != 0 for record in ended))
