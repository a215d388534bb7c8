"""Signals end waits for peers, with the default handlers and without `jaxring run`: processes get real ones."""

from __future__ import annotations

import json
import pathlib
import signal
import sys
import time

import pytest

from tests.stress.stress_jobs import Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_waits.py")
# One signal ends a wait long before its timeout; the processes say what ended it, so nothing here depends on the time.
pytestmark = pytest.mark.usefixtures("nothing_left")


class Waiting:
    """Of a job: what its processes wait for, and how that ended."""

    def __init__(self, job, processes):
        self.job, self.processes = job, processes

    def inside(self, name, *processes):
        for process in processes:
            self.job.wait_for_line(process, f"waits {name} ")

    def send(self, number, process):
        self.processes[process].send_signal(number)

    def insist(self, number, process, over):
        """The signal again and again, as a user sends it: the kernel makes one of those that come at once."""
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline, str(self.job)
            self.send(number, process)
            time.sleep(0.2)

    def ended(self, name, process):
        """(type of the error, its text)."""
        line = self.job.wait_for_line(process, f"ended {name} ")
        error = json.loads(line.removeprefix(f"ended {name} "))
        return error["kind"], error["text"]


@pytest.mark.slow
def test_a_process_with_all_ranks_goes_on_after_ctrl_c(tmp_path):
    with Job(tmp_path) as job:
        env = environment(2, FOLDER=str(tmp_path))
        waiting = Waiting(job, [job.start([sys.executable, "-X", "faulthandler", WORKER, "alone"], env)])
        # After each the worker checks that a collective works.
        for name in ("value", "block"):
            waiting.inside(name, 0)
            waiting.send(signal.SIGINT, 0)
            assert waiting.ended(name, 0) == ("KeyboardInterrupt", "")
        # A handler of the program's own may want the step to end well.
        waiting.inside("own handler", 0)
        waiting.send(signal.SIGINT, 0)
        kind, text = waiting.ended("own handler", 0)
        assert kind == "JaxRuntimeError"
        assert "DEADLINE_EXCEEDED" in text
        waiting.inside("own handler twice", 0)
        waiting.insist(signal.SIGINT, 0, lambda: "ended own handler twice" in job.text(0))
        kind, text = waiting.ended("own handler twice", 0)
        assert kind == "JaxRuntimeError", text
        assert "ABORTED: jaxring.recv" in text
        assert "process 0 was interrupted by SIGINT" in text
        assert json.loads(job.wait_for_line(0, "handled ").removeprefix("handled "))["times"] >= 2
        waiting.inside("term", 0)
        waiting.send(signal.SIGTERM, 0)
        (result,) = job.wait(60)
        assert result.code == -signal.SIGTERM, str(result)


@pytest.mark.multiprocess
def test_a_process_that_waits_for_others_is_ended_and_they_are_told(tmp_path):
    interrupted = "process 0 was interrupted by SIGINT"
    with coordinator_port() as port, Job(tmp_path) as job:
        env = environment(1, FOLDER=str(tmp_path), JAXRING_TRACE_DIR=str(tmp_path))
        command = [sys.executable, "-X", "faulthandler", WORKER, "job"]
        waiting = Waiting(job, [job.start(command, member(env, f"127.0.0.1:{port}", 3, p)) for p in range(3)])
        # In the planning thread, which waits for process 2 to join.
        waiting.inside("join", 0, 1)
        for process in range(2):
            waiting.send(signal.SIGINT, process)
            assert waiting.ended("join", process) == ("KeyboardInterrupt", "")
        (tmp_path / "joins").touch()
        waiting.inside("told", 2)
        (tmp_path / "all come").touch()
        # Who comes too late to a call that was interrupted is told of that.
        assert "was interrupted by SIGINT" in waiting.ended("told", 2)[1]
        waiting.inside("communicator", 0, 1)
        waiting.send(signal.SIGINT, 0)
        assert waiting.ended("communicator", 0) == ("KeyboardInterrupt", "")
        for process in (1, 2):
            kind, text = waiting.ended("communicator", process)
            assert kind == "JaxringError", text
            assert interrupted in text
            (tmp_path / "late").touch()
        # JAX has SIGTERM, and the program asks it for preemptions.
        waiting.inside("noticed", 0, 1)
        waiting.send(signal.SIGTERM, 1)
        for process in range(2):
            assert "DEADLINE_EXCEEDED" in waiting.ended("noticed", process)[1]
        waiting.inside("term", 0, 1)
        waiting.insist(signal.SIGTERM, 1, lambda: waiting.processes[1].poll() is not None)
        assert "it was ended by SIGTERM while it waited" in waiting.ended("term", 0)[1]
        waiting.inside("end", 0)
        waiting.send(signal.SIGINT, 0)
        # Though process 2 lives, for which jax.distributed waits at the end of a job.
        assert waiting.processes[0].wait(60) == -signal.SIGINT, str(job)
        assert "KeyboardInterrupt" in (tmp_path / "process0.err").read_text()
        (tmp_path / "over").touch()
        assert waiting.processes[1].wait(60) == -signal.SIGTERM, str(job)


@pytest.mark.multiprocess
def test_an_interrupted_process_ends_where_python_has_ended(tmp_path):
    """It waits in a destructor, where no thread of Python could end it."""
    worker = str(pathlib.Path(WORKER).with_name("worker_finalised.py"))
    with coordinator_port() as port, Job(tmp_path) as job:
        env = environment(1, JAXRING_TRACE_DIR=str(tmp_path))
        members = [job.start([sys.executable, worker], member(env, f"127.0.0.1:{port}", 2, p)) for p in range(2)]
        for process in members:
            assert process.wait(60) == -signal.SIGINT, str(job)
