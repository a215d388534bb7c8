"""For a process that must not outlive the one that has started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, even if that was killed.

    ``parent``: the pid of who has started it. The kernel means the thread that did so, not the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before the call
        os._exit(1)
