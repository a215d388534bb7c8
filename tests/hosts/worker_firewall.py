"""A process of a job in which process 0 cannot connect to process 1: prints what each call raises."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import jax

import jaxring
from tests.stress.stress_ranks import AXIS, over, put, rows, start

FOLDER = pathlib.Path(os.environ["FOLDER"])
LIMIT_S = 60.0


def main() -> None:
    mesh = start()
    x = put(mesh, rows(mesh.size, 16, "float32"))
    calls = {
        # Process 1 sends nothing in this, so it does not connect to process 0, either.
        "one way": lambda v: jaxring.broadcast(v, AXIS, root=0, timeout=50),
        "short": lambda v: jaxring.all_reduce(v, AXIS, timeout=2),
        "long": lambda v: jaxring.all_reduce(v, AXIS, timeout=50),
    }
    for name, call in calls.items():
        try:
            jax.block_until_ready(over(mesh, call)(x))
        except jax.errors.JaxRuntimeError as error:
            print(name, "raised", json.dumps(str(error)), flush=True)
        else:
            sys.exit(f"{name}: no error")
    (FOLDER / f"done {jax.process_index()}").touch()
    deadline = time.monotonic() + LIMIT_S
    while not (FOLDER / "over").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os._exit(0)  # without waiting for the other at the end of jax.distributed


if __name__ == "__main__":
    main()
