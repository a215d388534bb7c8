"""Starts the processes of a case of cudahost_worker.py."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

from tests import ROOT

FOLDER = pathlib.Path(__file__).parent


def run_job(case, processes, devices, expected=None, **environment):
    """Runs the processes of a case; ``expected`` are their exit codes. Returns their outputs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRING_TIMEOUT": "100", **environment}
    command = [sys.executable, str(FOLDER / "cudahost_worker.py"), case]
    started = [
        subprocess.Popen(
            [*command, str(p), str(processes), str(devices), str(port)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for p in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    codes = [process.returncode for process in started]
    assert codes == (expected or [0] * processes), "\n".join(outputs)
    return outputs
