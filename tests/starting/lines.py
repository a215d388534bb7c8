"""Command lines as pages show them, to be run in the environment of this Python."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

from tests.starting.popen import run

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a shell would do something about.
_SHELLS = re.compile(r"[][|&;<>$`*?~(){}\\#!\n]")
_ASSIGNMENT = re.compile(r"\w+=")


def run_line(
    line: str, env: Mapping[str, str], *, shell: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a line as bash does, with this Python's programs first on the path, and captures what it prints.

    Unless `shell` is set, a line of `python` or `jaxring` is run by `run`, if nothing but assignments is a shell's.
    """
    env = {**env, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{env['PATH']}"}
    options |= {"capture_output": True, "text": True, "check": False}
    words = [] if shell or _SHELLS.search(line) else shlex.split(line)
    own = list(itertools.takewhile(_ASSIGNMENT.match, words))
    words = words[len(own) :]
    if words[:1] not in (["python"], ["jaxring"]):
        return subprocess.run(["bash", "-c", line], env=env, **options)
    return run(
        [sys.executable if words[0] == "python" else words[0], *words[1:]],
        env=env | dict(each.split("=", 1) for each in own),
        **options,
    )
