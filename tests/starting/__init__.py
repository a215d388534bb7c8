"""Starts Python processes for tests: `Popen` and `run` in place of subprocess's, from a process that has imported JAX.

The import of JAX is most of what a short process costs, and tests start many hundreds. So each process that starts
some has a server (`server.py`) that has imported it and nothing of jaxring, has one thread, and forks. What it forks
becomes a child of the process that asked, as if that had started it: its pid, its exit status and its signals are those
of a child, and its environment, files, group and limits are as asked (`child.py`).

Where a fork cannot be what was asked for (`request.py`) the process is started as subprocess does it, and so are all
where the variable TEST_FORKS is 0. Tests of the start itself, such as of what the command line imports, use subprocess.

A process whose command starts others, `jaxring run` above all, has a server of its own, and subprocess.Popen there is
this one: the processes of a job are forks, too.
"""

from __future__ import annotations

from tests.starting.popen import Popen, run
from tests.starting.request import Host

__all__ = ["Host", "Popen", "run"]
