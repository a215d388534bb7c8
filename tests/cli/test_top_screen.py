"""`jaxring top` on a terminal: a real job on its screen, its keys, and the terminal as it was before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.stress.stress_jobs import ROOT, Job, environment
from tests.trace.test_live import PROGRAM

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(900), pytest.mark.usefixtures("nothing_left")]

LIMIT_S = 250.0  # of each wait, as other tests may run at the same time
TAKEN, GIVEN_BACK = ("\x1b[?1049h", "\x1b[?25l"), ("\x1b[?1049l", "\x1b[?25h")
# As a shell runs a command: in the foreground of its terminal, until that ends or is stopped; a line continues it.
SHELL = """
import fcntl, os, signal, sys, termios

def foreground(group):
    os.tcsetpgrp(0, group)

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
command = os.fork()
if not command:
    os.setpgid(0, 0)
    foreground(os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "jaxring.cli", *sys.argv[1:]])
print("runs", command, flush=True)
while True:
    _, status = os.waitpid(command, os.WUNTRACED)
    foreground(os.getpgrp())
    if not os.WIFSTOPPED(status):
        break
    print("stopped", flush=True)
    sys.stdin.readline()
    foreground(command)
    os.killpg(command, signal.SIGCONT)
print("ended by", os.waitstatus_to_exitcode(status), flush=True)
"""


class Terminal:
    """A terminal in which `jaxring top` runs. ``shown``: all that has been written to it."""

    def __init__(self, rows, *options):
        self._master, self._end = os.openpty()
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("4H", rows, 200, 0, 0))
        self.modes = termios.tcgetattr(self._end)
        self.shown, self._at = "", 0
        env = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
        self._shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, "top", "--interval", "0.3", *options],
            env=env | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=self._end,
            stdout=self._end,
            stderr=self._end,
            start_new_session=True,
        )

    def __enter__(self):
        self.command = int(self.until(r"runs (\d+)\r\n")[1])
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.command, signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        os.close(self._master)
        os.close(self._end)

    def until(self, pattern):
        """Waits for this in what is written after what was waited for before."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.compile(pattern, re.DOTALL).search(self.shown, self._at)):
            assert time.monotonic() < deadline, (pattern, self.shown[-3000:])
            if select.select([self._master], [], [], 0.1)[0]:
                self.shown += os.read(self._master, 1 << 16).decode(errors="replace")
        self._at = found.end()
        return found

    def type(self, text):
        os.write(self._master, text.encode())

    def is_taken(self):
        """Its second screen, without a cursor, and keys that come one by one and are not shown."""
        return self._last_are(TAKEN) and not termios.tcgetattr(self._end)[3] & (termios.ICANON | termios.ECHO)

    def is_as_it_was(self):
        return self._last_are(GIVEN_BACK) and termios.tcgetattr(self._end) == self.modes

    def _last_are(self, these):
        """Of what takes and gives back the screen and the cursor."""
        last = (max(each, key=self.shown.rfind) for each in zip(TAKEN, GIVEN_BACK, strict=True))
        return tuple(last) == these


@pytest.fixture
def launcher(tmp_path):
    """The process that launches a job of two, which has begun."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    with Job(tmp_path) as job:
        command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", str(script)]
        # An end by an error leaves flight records there.
        started = job.start(command, {**environment(TMPDIR=str(tmp_path)), "PYTHONPATH": str(ROOT)})
        for process in range(2):
            job.wait_for_line(0, f"[{process}] begun", LIMIT_S)
        yield started


def test_the_screen_of_a_job_and_its_keys(launcher):
    with Terminal(8, "--job", str(launcher.pid)) as terminal:
        terminal.until(r"the first view takes 0\.3 s\.")
        terminal.until(r"process 0.*all_reduce.* at program\.py:\d+")
        # As many lines as there are to say, which changes.
        window, rows = r"lines {0} to {1} of \d+; arrows and pages scroll; q ends", 7
        at = lambda first: window.format(first, first + rows - 1)  # noqa: E731
        terminal.until(at(1))
        assert terminal.is_taken()
        for keys, first in (("\x1b[B", 2), ("\x1bOB", 3), ("\x1b[A", 2), ("j\x1b[B", 4), ("\x1b[5~", 1)):
            terminal.type(keys)
            terminal.until(at(first))
        end = r"lines \d+ to (\d+) of \1;"
        terminal.type("\x1b[F")
        terminal.until(end)
        terminal.until("comes last.*process 1")
        terminal.type("\x1a")  # Ctrl-Z
        terminal.until("stopped")
        assert terminal.is_as_it_was()
        terminal.type("fg\n")
        terminal.until(end)
        assert terminal.is_taken()
        terminal.type("xq")
        terminal.until("ended by 0")
        assert terminal.is_as_it_was()


def test_every_end_leaves_the_terminal_as_it_was(launcher):
    def ctrl_c(terminal):
        terminal.type("\x03")

    def terminate(terminal):
        os.kill(terminal.command, signal.SIGTERM)

    def end_the_job(_):
        launcher.send_signal(signal.SIGINT)

    for end, said, code in (
        (ctrl_c, "jaxring top: interrupted", 130),
        (terminate, "jaxring top: ended by SIGTERM", 143),
        (end_the_job, "The job has ended.", 0),
    ):
        with Terminal(50, "--job", str(launcher.pid)) as terminal:
            terminal.until("process 1.*comes last.*q ends")
            assert terminal.is_taken()
            end(terminal)
            # On the screen of before, where it stays.
            terminal.until(rf"\x1b\[\?1049l.*{re.escape(said)}\r\n.*ended by {code}\r\n")
            assert terminal.is_as_it_was()
