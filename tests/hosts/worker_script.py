"""Initialises jax.distributed and runs a script, as `jaxring run` has it done: `python worker_script.py SCRIPT ...`."""

from __future__ import annotations

import pathlib
import runpy
import sys

from jaxring.world import launch

if __name__ == "__main__":
    launch.initialize()
    del sys.argv[0]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
