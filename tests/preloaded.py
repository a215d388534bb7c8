"""Processes that have imported JAX already: `python -m tests.preloaded SCRIPT` imports it, and forks one for each.

The import is most of what a short job costs, and here all processes of all jobs of a test share it. Standard input is a
JSON list with the variables that each process has beside the parent's. JAX reads its own when it is imported, so those
among them that differ can only be ones that jaxring reads (`jaxring.world.launch`). Nothing of jaxring is imported
before the fork, since its engine starts threads, and a process with several must not fork.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import warnings

_PR_SET_PDEATHSIG = 1


def run(script: pathlib.Path, processes: list[dict[str, str]], environ: dict[str, str], timeout_s: float = 240) -> str:
    """Runs a script in processes with these variables, all at once. Returns what they print; all must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.preloaded", str(script)],
        input=json.dumps(processes),
        env=environ | {"OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _main(script: str) -> None:
    import jax  # noqa: F401

    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    assert len(threads) == 1, f"{len(threads)} threads after the import of JAX"
    parent, children = os.getpid(), {}
    for number, variables in enumerate(json.load(sys.stdin)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX's, of threads: there are none
            pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            assert os.getppid() == parent
            os.environ.update(variables)
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
            return
        children[pid] = number
    failed = []
    while children:
        pid, status = os.wait()
        number, code = children.pop(pid), os.waitstatus_to_exitcode(status)
        if code:
            failed.append(f"process {number} ended with {code}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    _main(*sys.argv[1:])
