"""Whether this process is the command `jaxring`, or one that it starts; and Ctrl-C before such a process has begun.

The command starts with wrong settings too, to say what is wrong with them. While it imports, Ctrl-C ends it as a signal
does that is not handled: JAX's imports take seconds, a KeyboardInterrupt there shows a traceback of them, and in a
callback, as of the garbage collector, it is printed and the process goes on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

_MODULES, _WORKER = ("jaxring", "jaxring.cli"), "jaxring.launcher.worker"
# When an interrupt that was lost is raised again; one that is lost once more is raised once more.
_AGAIN_S = 0.05
_again: list[threading.Timer] = []
# The signals other than SIGINT that have interrupted the command.
_ended_by: list[int] = []


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """By sys.argv and sys.orig_argv, as they are while the package is imported: the command has no say before that.

    The script that pip makes is called jaxring; in `python -m jaxring.cli` the first argument is "-m" until the module
    is found.
    """
    return any(_is_module(name, argv, original) for name in _MODULES) or (
        bool(argv) and pathlib.PurePath(argv[0]).name == "jaxring"
    )


def _is_module(name: str, argv: Sequence[str], original: Sequence[str]) -> bool:
    if not argv or argv[0] != "-m":
        return False
    return f"-m{name}" in original or any(pair == ("-m", name) for pair in itertools.pairwise(original))


@functools.cache
def this_process() -> bool:
    """Whether this process is the command. First asked while the package is imported: sys.argv changes later."""
    return is_command(sys.argv, sys.orig_argv)


@functools.cache
def _is_worker() -> bool:
    return _is_module(_WORKER, sys.argv, sys.orig_argv)


def end_at_interrupt() -> None:
    """Have SIGINT end this process without a word, if it is the command or a worker of `jaxring run`.

    A handler that is not Python's own stays, and so does a SIGINT that is ignored.
    """
    if (this_process() or _is_worker()) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_at_interrupt() -> None:
    """Take back `end_at_interrupt`: from here on what runs can be left by KeyboardInterrupt.

    One that a callback loses, such as JAX's of the garbage collector, is raised again, in the command and in a worker,
    whose program Ctrl-C shall end. A hook that the program sets later is its own.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        return
    if this_process() or _is_worker():
        sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _unraisable(hook: Callable[[sys.UnraisableHookArgs], object], lost: sys.UnraisableHookArgs) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        hook(lost)
        return
    # Not from here, which is within the callback. As a signal of the main thread, which also ends what that waits in: a
    # sleep of Python's, and by jaxring's watcher a wait for a collective.
    main = threading.main_thread().ident or 0
    timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    _again.append(timer)
    timer.start()


def raise_lost() -> None:
    """Raise KeyboardInterrupt if a callback has lost one that has not been raised again yet.

    For the end of the command, or of a worker's script.
    """
    for timer in _again:
        if timer.is_alive():
            timer.cancel()
            timer.join()  # it may be past that: then its signal comes here, and not when this has been handled
            raise KeyboardInterrupt


@contextlib.contextmanager
def ended_as_by_interrupt() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt, for a command that has started what does not end with it.

    By default they end a process at once, with no `finally` and no `__exit__`. Only the first one counts: a terminal
    that is closed, and `timeout`, may send several. What does not have its default action is left as it is, as under
    nohup. For the main thread.
    """
    _ended_by.clear()
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: types.FrameType | None) -> None:
    _ended_by.append(number)
    if len(_ended_by) == 1:
        raise KeyboardInterrupt


def interrupting_signal() -> signal.Signals:
    """What has raised KeyboardInterrupt: SIGINT, or one that `ended_as_by_interrupt` has taken for it."""
    return signal.Signals(_ended_by[0]) if _ended_by else signal.SIGINT
