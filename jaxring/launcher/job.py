"""The processes of a local job: started, their output forwarded, and all of them ended together.

Each child leads a process group of its own, so ending a child ends what it started, and Ctrl-C reaches the launcher
only, which passes it on. A child is reaped after its group has been ended, so that its pid cannot mean another process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

from jaxring.launcher.command import Command, HostPart, Input
from jaxring.launcher.failures import Failures
from jaxring.launcher.streams import Log, Reports, Sink, Stream, label

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence

    from jaxring.launcher.failure_report import Report
    from jaxring.launcher.restart import Restart

GRACE_S = 5.0
KILL_S = 2.0
# The most reads in a row from one pipe, so that a child that always writes does not keep the launcher busy.
_READS = 16
_TICK_S = 0.05


class Job:
    """Starts `commands` and waits for them. `output` is "all" or "rank0"; see `jaxring run`.

    `log_dir` has a file of each process's output, whatever `output` says; "" for none.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        output: str,
        prefix: bool,
        restart: Restart | None = None,
        part: HostPart = HostPart(),  # noqa: B008 - immutable
        log_dir: str = "",
    ) -> None:
        self._part, self._log_dir = part, log_dir
        self._commands = dict(enumerate(commands, part.first))
        self._restart = restart
        self._output, self._prefix = output, prefix
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._tails: dict[int, Stream] = {}
        self._failures = Failures(part.hosts)
        self._started: set[int] = set()
        self._code = 0
        self._signals: list[int] = []
        self._handled = 0
        self._stages: list[tuple[float, int]] = []
        self._ending = False

    def run(self) -> int:
        """Exit code of the job: that of the first process to fail, 128 + n for one ended by signal n, 130 for Ctrl-C.

        When one fails the others have GRACE_S seconds to end by themselves. A process fails when an exception ends its
        script, which it reports, or when it ends by a signal or with an exit code.
        """
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self._part.until_input_ends:
                self._watch(os.fdopen(os.dup(0), "rb", buffering=0), Input(lambda: self._signals.append(signal.SIGINT)))
            for rank, command in self._commands.items():
                if self._signals:
                    break
                self._start(rank, command)
            self._end_if_due()  # before any has been started, too
            while self._children:
                self._forward(_TICK_S)
                self._reap()
                self._decide()
                self._show_tail()
                self._start_again()
                self._end_if_due()
            interrupted = bool(self._handled)
            self._drain()
            summary = self._failures.summary()
            if interrupted:
                # The launcher that has started this one says it, and who has failed has been named.
                if self._signals[0] == signal.SIGINT and self._part.tell is None and self._failures.first is None:
                    _say(self._failures.interrupted())
            elif summary is not None:
                _say(summary)
            return self._code
        finally:
            # This also runs when the launcher itself fails, so that no process is left behind.
            for child in self._children.values():
                _signal_group(child, signal.SIGKILL)
                child.wait()
            self._selector.close()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self, rank: int, command: Command) -> None:
        direct = not self._log_dir and (not self._prefix if self._output == "all" else rank == 0)
        pipe = None if direct else subprocess.PIPE
        hidden = self._output == "rank0" and rank != 0
        out = subprocess.DEVNULL if hidden and not self._log_dir else pipe
        # In a group of its own, a child that reads from the terminal would be stopped; a pipe or file it may read.
        stdin = None if rank == 0 and not os.isatty(0) and not self._part.until_input_ends else subprocess.DEVNULL
        if command.lifeline:
            stdin = subprocess.PIPE
        log = self._log(rank)
        self._started.add(rank)
        reads, writes = os.pipe()
        pass_fds = (writes, self._restart.read_end) if self._restart is not None and rank == 0 else (writes,)
        try:
            child = subprocess.Popen(
                command.argv(writes),
                env=command.env,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.PIPE if command.lifeline else pipe,
                process_group=0,
                pass_fds=pass_fds,
            )
        finally:
            os.close(writes)
            reports = os.fdopen(reads, "rb", buffering=0)
        self._watch(reports, Reports(functools.partial(self._report, rank)))
        self._children[rank] = child
        out_label, err_label = (label(rank, each) if self._prefix else b"" for each in (sys.stdout, sys.stderr))
        if child.stdout is not None:
            self._watch(child.stdout, Stream(out_label, None if hidden else sys.stdout.buffer, log))
        if child.stderr is not None:
            if command.lifeline and self._part.listen is not None:
                report = functools.partial(self._report, rank)
                self._watch(child.stderr, self._part.listen(sys.stderr.buffer, report))
                return
            stream = Stream(err_label, None if hidden else sys.stderr.buffer, log)
            self._watch(child.stderr, stream)
            if hidden:
                self._tails[rank] = stream

    def _report(self, rank: int, report: Report) -> None:
        self._failures.reported(rank, report)
        if self._part.tell is not None:
            self._part.tell(rank, report)

    def _log(self, rank: int) -> Log | None:
        """The file for the process's output: of a process that is started again, one file."""
        return Log(self._log_dir, rank, rank in self._started, _say) if self._log_dir else None

    def _watch(self, pipe: IO[bytes], sink: Sink) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, sink)

    def _forward(self, wait_s: float) -> bool:
        """Forward what there is; waits up to `wait_s` seconds for some. False when there was nothing."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return False
        ready = self._selector.select(wait_s)
        progress = False
        for key, _ in ready:
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            progress = True
            if data:
                key.data.feed(data)
            else:
                self._finish(key)
        return progress

    def _finish(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert not isinstance(key.fileobj, int)
        key.fileobj.close()  # type: ignore[attr-defined]
        key.data.end()

    def _read_all(self) -> None:
        """Forward what was there when this was called; what comes meanwhile, too, up to a bound."""
        for _ in range(_READS):
            if not self._forward(0):
                return

    def _drain(self) -> None:
        self._read_all()
        # A pipe that is still open belongs to something that left its group on purpose; it is not waited for.
        for key in list(self._selector.get_map().values()):
            self._finish(key)

    def _reap(self) -> None:
        for rank, child in list(self._children.items()):
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _signal_group(child, signal.SIGKILL)  # what it left behind; the child itself has ended
            status = child.wait()
            del self._children[rank]
            self._read_all()  # its report, if there is one
            over = not status or self._failures.first is not None or bool(self._signals)
            if not over and self._restart is not None and self._restart.takes(rank):
                failure = self._failures.failure(rank, status)
                self._failures.unreported(rank)
                _say(f"{failure}; it is started again in {self._restart.delay_s:g} s")
                continue
            self._failures.ended(rank, status, self._ending)

    def _decide(self) -> None:
        """Find the first process that failed, and give the others GRACE_S from then on."""
        if self._signals or not self._failures.undecided():
            return
        # Reports that lie in their pipes may be older than those that have been read.
        self._read_all()
        deferred = [rank for rank in self._children if self._restart is not None and self._restart.would_take(rank)]
        if self._part.hosts:
            # Reports of hosts come by several ways: one that another may be the cause of waits for its host's end.
            deferred = [rank for rank in self._failures.echoes() if rank in self._children]
        first = self._failures.decide({rank: child.pid for rank, child in self._children.items()}, deferred)
        if first is None:
            return
        self._code = first.code
        rest = f"; the others have {GRACE_S:g} s to end" if set(self._children) - {first.rank} else ""
        _say(f"{first}{rest}")
        self._stages = _stages(time.monotonic())

    def _show_tail(self) -> None:
        """Once the first to fail has ended, show what it said last, if its output was hidden."""
        first = self._failures.first
        if first is not None and first.rank not in self._children and first.rank in self._tails:
            self._tails.pop(first.rank).finish(sys.stderr.buffer)

    def _start_again(self) -> None:
        if self._restart is None:
            return
        due = self._restart.due
        if self._code or self._signals:
            due.clear()
        for rank in [rank for rank, when in due.items() if when <= time.monotonic()]:
            del due[rank]
            self._start(rank, self._commands[rank])
        if not due and set(self._children) <= {0}:
            self._restart.close()

    def _on_signal(self, number: int, _frame: types.FrameType | None) -> None:
        self._signals.append(number)

    def _end_if_due(self) -> None:
        """Act on signals to the launcher, passed on at once and followed by harder ones; a second one kills."""
        now = time.monotonic()
        if len(self._signals) > self._handled:
            number = signal.SIGKILL if self._handled else self._signals[0]
            self._handled = len(self._signals)
            self._code = self._code or 128 + self._signals[0]
            self._stages = [(now, number), *_stages(now)]
        while self._stages and self._stages[0][0] <= now:
            _, number = self._stages.pop(0)
            self._ending = True
            for rank, child in self._children.items():
                if number == signal.SIGINT and self._commands[rank].lifeline and child.stdin is not None:
                    # The host's launcher ends its processes by SIGINT then, and still hands on what they report. ssh,
                    # which would end at once, could not.
                    child.stdin.close()
                else:
                    _signal_group(child, number)


def _stages(now: float) -> list[tuple[float, int]]:
    # jax.distributed catches SIGTERM, as notice of a preemption, so that often does not end a process.
    return [(now + GRACE_S, signal.SIGTERM), (now + GRACE_S + KILL_S, signal.SIGKILL)]


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    # The child is not reaped yet, so its pid, which is its group's id, is still its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"jaxring run: {text}", file=sys.stderr, flush=True)
