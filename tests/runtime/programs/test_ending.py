"""A process that ends while a thread of jaxring's is in native code."""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import time
from jaxring import _native
from jaxring.world import daemons
def busy():
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        _native.next_request(0.0)
"""


def test_a_thread_in_native_code_is_waited_for():
    # In a thread that nobody waits for, busy() ends the process by SIGABRT (Python 3.11).
    command = [sys.executable, "-c", BUSY + "daemons.start('busy', busy)"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
