"""One process of `jaxring run`: initialise jax.distributed, then run the script as if Python had been given it.

Arguments: [--no-init] [--module] [--last FD] LAUNCHER_PID SCRIPT [ARGUMENT ...].
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import pathlib
import runpy
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the script; what it raises goes through."""
    arguments = sys.argv[1:]
    options = set()
    last = -1
    while arguments[0].startswith("--"):
        options.add(arguments.pop(0))
        if "--last" in options and last < 0:
            last = int(arguments.pop(0))
    launcher, script = int(arguments[0]), arguments[1]
    _die_with(launcher)
    sys.argv = arguments[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines (also those that a carriage return ends) come at once and whole, though the output may be a pipe.
        sys.stdout.reconfigure(line_buffering=True)
    if "--no-init" not in options:
        _initialize()
    # As `python script.py` and `python -m module` have it. The launcher's -P has left it out for the worker.
    sys.path.insert(0, os.getcwd() if "--module" in options else str(pathlib.Path(script).resolve().parent))  # noqa: PTH109
    try:
        if "--module" in options:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if not end.code:
            _outlive(last)
        raise
    _outlive(last)


def _outlive(last: int) -> None:
    """Wait for the end of all others, which is when the launcher closes its end of the pipe.

    The coordination service ends with process 0, and where tasks are recoverable every one that still lives with it.
    """
    if last >= 0:
        os.read(last, 1)


def _die_with(launcher: int) -> None:
    """Have the kernel end this process when the launcher is gone, even if that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it went before the call
        os._exit(1)


def _initialize() -> None:
    import jax

    from jaxring.world import launch

    launch.initialize()
    jax.distributed.initialize = _tolerant(jax.distributed.initialize)


def _tolerant(real: Any) -> Any:
    """jax.distributed.initialize for a script that calls it itself: checks that it means this job, and does nothing.

    Raises RuntimeError for another number of processes or index.
    """

    @functools.wraps(real)
    def initialize(*args: Any, **kwargs: Any) -> None:
        names = ("coordinator_address", "num_processes", "process_id")
        given = dict(zip(names, args, strict=False)) | kwargs
        for name, variable in (("num_processes", "JAX_NUM_PROCESSES"), ("process_id", "JAX_PROCESS_ID")):
            wanted = given.get(name)
            if wanted is not None and int(wanted) != int(os.environ[variable]):
                raise RuntimeError(
                    f"jax.distributed.initialize({name}={wanted}), but 'jaxring run' has initialised it with "
                    f"{os.environ[variable]}. Use 'jaxring run --no-init' for a script that does this by itself."
                )
        ignored = sorted(name for name, value in given.items() if value is not None and name not in names[1:])
        if ignored:
            print(
                f"jaxring run: jax.distributed is initialised already; {', '.join(ignored)} has no effect. "
                "Use --no-init to let the script do it.",
                file=sys.stderr,
            )

    return initialize


if __name__ == "__main__":
    main()
