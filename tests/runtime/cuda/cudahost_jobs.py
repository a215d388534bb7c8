"""Starts the processes of a case of cudahost_worker.py.

What each writes is in a file of its own at once, in the folder that TEST_OUTPUT names (a temporary one otherwise).
TEST_JOB_SECONDS ends a job; TEST_JOB_TIMEOUT is its JAXRING_TIMEOUT.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from tests import ROOT, starting

FOLDER = pathlib.Path(__file__).parent
# Functions of cudahost_features.py.
FEATURES = ("repeated", "experts", "compressed", "resharded", "multiplied", "trained")
# What the error says of messages that cannot be served, by the case.
REFUSED = {
    "disagree": "disagree about the operation's shape or type",
    "ahead": "waited too long for room for a message of rank",
    "sizes_disagree": "rows from rank 1, whose send_sizes says",
    "sizes_negative": "an offset or size for rank 0 is negative",
    "sizes_input": "input_offsets + send_sizes for peer 0 reach past the operand's end",
    "sizes_output": "what rank 0 sends here reaches past the output's end",
}


def run_job(case, processes, devices, expected=None, may_share=True, **environment):
    """Runs the processes of a case; ``expected`` are their exit codes. Returns their outputs.

    They share GPUs: a machine may have one only, and the GPUs of the fake have the same names in each process.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRING_TIMEOUT": os.environ.get("TEST_JOB_TIMEOUT", "100")}
    env |= environment
    if may_share:
        env["JAXRING_P2P"] = env.get("JAXRING_P2P", "direct") + ",shared"
    command = [sys.executable, str(FOLDER / "cudahost_worker.py"), case]
    deadline = time.monotonic() + float(os.environ.get("TEST_JOB_SECONDS", "240"))
    with contextlib.ExitStack() as stack:
        folder = os.environ.get("TEST_OUTPUT") or stack.enter_context(tempfile.TemporaryDirectory())
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        files = [pathlib.Path(folder) / f"{case}-{port}-{p}.txt" for p in range(processes)]
        started = []
        for p, file in enumerate(files):
            arguments = [*command, str(p), str(processes), str(devices), str(port)]
            with file.open("w") as out:
                started.append(starting.Popen(arguments, env=env, stdout=out, stderr=subprocess.STDOUT))
        late = ""
        try:
            for process in started:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = "\nThe job was ended, since it took too long."
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        outputs = [file.read_text(errors="replace") for file in files]
    codes = [process.returncode for process in started]
    assert codes == (expected or [0] * processes), "\n".join(outputs) + late
    return outputs
