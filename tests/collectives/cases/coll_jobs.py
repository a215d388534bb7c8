"""Starts jobs of several processes on this host and reads what they report."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests import starting

if TYPE_CHECKING:
    from collections.abc import Callable


HERE = pathlib.Path(__file__).parent
# Ours, and what one pytest process sets up for itself.
_PREFIXES = ("JAXRING_", "JAX_", "PJRT_")


def run_job(
    script: str | pathlib.Path,
    processes: int,
    devices: int,
    *arguments: str,
    options: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
    timeout_s: float = 240,
    **env: str,
) -> tuple[int, str]:
    """`jaxring run` with `options` of a script with its arguments: (exit code, all its output).

    `before`: a command that runs the one behind it.
    """
    base = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", str(processes), "--devices-per-process", str(devices)]
    child = starting.Popen(
        [*before, *command, *options, str(script), *arguments],
        env=base | {"JAX_PLATFORMS": "cpu", "JAXRING_TIMEOUT": "60"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.terminate()  # the launcher ends its processes
        try:
            output, _ = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        return 124, output + f"\nthe job took more than {timeout_s:g} s"
    return child.returncode, output


def tables(folder: pathlib.Path, processes: int, devices: int, *names: str, **env: str) -> list[dict[str, Any]]:
    """What each process of a job reports of the tables; the job's own failure is an AssertionError."""
    code, output = run_job(HERE / "coll_worker.py", processes, devices, str(folder), *names, **env)
    assert code == 0, f"exit code {code}\n{output[-6000:]}"
    return [json.loads((folder / f"{process}.json").read_text(encoding="utf-8")) for process in range(processes)]


_known: dict[pathlib.Path, Any] = {}


def once(folder: pathlib.Path, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON has it. Only the first process that asks calls it; the others wait and read."""
    if folder not in _known:
        folder.mkdir(exist_ok=True)
        kept = folder / "result"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(make()), encoding="utf-8")
        _known[folder] = json.loads(kept.read_text(encoding="utf-8"))
    return _known[folder]


def merged(
    reports: list[dict[str, Any]], table: str, kind: str = "digests"
) -> tuple[int, list[str], dict[str, dict[str, str]]]:
    """Checks, failures and digests {name: {rank: digest}} of a table over all processes (`Report`'s kinds)."""
    parts = [report["tables"][table] for report in reports]
    failures = [f"[{process}] {text}" for process, part in enumerate(parts) for text in part["failures"]]
    digests: dict[str, dict[str, str]] = {}
    for part in parts:
        for name, found in part[kind].items():
            digests.setdefault(name, {}).update(found)
    return sum(part["checks"] for part in parts), failures, digests
