"""How a process of a job under `jaxring run --restart` ends by a failure of the test."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(main: Callable[[], None]) -> None:
    """Calls ``main``. What it raises ends the launcher, too, which would start this process again."""
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os.kill(os.getppid(), signal.SIGTERM)
        raise
