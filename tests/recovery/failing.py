"""How a process of a job under `jaxring run --restart` ends by a failure of the test."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


# Once the launcher has ended, this process's parent is another one.
LAUNCHER = os.getppid()


def run(main: Callable[[], None]) -> None:
    """Calls ``main``. What it raises ends the launcher, too, which would start this process again."""
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        if os.getppid() == LAUNCHER:
            os.kill(LAUNCHER, signal.SIGTERM)
        raise
