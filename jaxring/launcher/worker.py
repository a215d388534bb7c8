"""One process of `jaxring run`: initialise jax.distributed, then run the script as if Python had been given it.

Arguments: [--no-init] [--module] [--last FD] [--report FD] LAUNCHER_PID SCRIPT [ARGUMENT ...].
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import pathlib
import runpy
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxring import _command
from jaxring.launcher import failure_report, lifeline
from jaxring.runtime import ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType


class Options(NamedTuple):
    """The command line. `last` and `report` are file descriptors, -1 where there is none."""

    initialize: bool
    module: bool
    last: int
    report: int
    launcher: int
    script: list[str]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """What the launcher has written, so nothing is checked."""
        rest, flags, numbers = list(arguments), set(), {"--last": -1, "--report": -1}
        while rest[0].startswith("--"):
            name = rest.pop(0)
            if name in numbers:
                numbers[name] = int(rest.pop(0))
            flags.add(name)
        return cls(
            "--no-init" not in flags,
            "--module" in flags,
            numbers["--last"],
            numbers["--report"],
            int(rest[0]),
            rest[1:],
        )


def main() -> None:
    """Run the script. What it raises is reported to the launcher at once, and goes through."""
    _command.raise_at_interrupt()
    options, pid = Options.parse(sys.argv[1:]), os.getpid()
    if options.report >= 0:
        os.set_inheritable(options.report, False)  # it speaks for this process only
    try:
        try:
            _run(options)
        finally:
            # Also in place of an error that it causes: a process that was interrupted at the same time is gone already.
            _command.raise_lost()
    except BaseException as error:
        reported = options.report >= 0 and os.getpid() == pid  # a fork that the script made is no process of the job
        if reported:
            failure_report.send(options.report, error)
        if isinstance(error, KeyboardInterrupt) and reported:
            ending.launcher_reports_interrupt()
        sys.excepthook = functools.partial(_show, sys.excepthook, reported)
        raise
    ending.exits(None)
    _outlive(options.last)


def _run(options: Options) -> None:
    lifeline.die_with(options.launcher)
    sys.argv, script = options.script, options.script[0]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Lines (also those that a carriage return ends) come at once and whole, though the output may be a pipe.
        sys.stdout.reconfigure(line_buffering=True)
    if options.initialize:
        _initialize()
    else:
        jax.distributed.initialize = _from_environment(jax.distributed.initialize)
    # As `python script.py` and `python -m module` have it. The launcher's -P has left it out for the worker.
    sys.path.insert(0, os.getcwd() if options.module else str(pathlib.Path(script).resolve().parent))  # noqa: PTH109
    try:
        if options.module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        ending.exits(end.code)
        if not end.code:
            _outlive(options.last)
        raise


def _show(
    hook: Callable[..., Any], reported: bool, kind: type[BaseException], error: BaseException, trace: TracebackType
) -> None:
    """sys.excepthook: has `hook` show the exception without the frames that ran the script.

    Ctrl-C reaches all processes, and where each was is said by the launcher, in one line, if it has been ``reported``.
    A SIGINT to this process alone, or a KeyboardInterrupt that the script raises, is not told from that: the launcher
    says that the process failed and at which line, and no traceback is shown, nor kept in the file of --log-dir. A hook
    of the script's own is called with every exception.
    """
    if kind is KeyboardInterrupt and hook is sys.__excepthook__ and reported:
        return
    files = {__file__, runpy.run_path.__code__.co_filename}
    for one in failure_report.chain(error):
        one.__traceback__ = failure_report.stripped(one.__traceback__, files)
    hook(kind, error, failure_report.stripped(trace, files))


def _outlive(last: int) -> None:
    """Wait for the end of all others, which is when the launcher closes its end of the pipe.

    The coordination service ends with process 0, and where tasks are recoverable every one that still lives with it.
    """
    if last >= 0:
        os.read(last, 1)


def _initialize() -> None:
    from jaxring.world import launch

    launch.initialize()
    jax.distributed.initialize = _tolerant(jax.distributed.initialize)


def _from_environment(real: Any) -> Any:
    """jax.distributed.initialize for a script that runs with --no-init: fills in what the script leaves out.

    JAX reads JAX_COORDINATOR_ADDRESS by itself and nothing else of a job that it knows no launcher of. Number and index
    are not filled in where the script says how JAX shall detect them.
    """

    @functools.wraps(real)
    def initialize(*args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(real).bind(*args, **kwargs)
        if bound.arguments.get("cluster_detection_method") in (None, "deactivate"):
            for name, variable in (("num_processes", "JAX_NUM_PROCESSES"), ("process_id", "JAX_PROCESS_ID")):
                if bound.arguments.get(name) is None and variable in os.environ:
                    bound.arguments[name] = int(os.environ[variable])
        real(*bound.args, **bound.kwargs)

    return initialize


def _tolerant(real: Any) -> Any:
    """jax.distributed.initialize for a script that calls it itself: checks that it means this job, and does nothing.

    Raises RuntimeError for another number of processes or index. After jax.distributed.shutdown() it is JAX's own
    function, so that jaxring.rebuild(size=...) can form another job.
    """

    @functools.wraps(real)
    def initialize(*args: Any, **kwargs: Any) -> None:
        if not jax.distributed.is_initialized():
            real(*args, **kwargs)
            return
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
