"""A process of a job whose hosts are cut off from each other: in a call, while idle, and once the cable is mended.

The test cuts and mends, and tells by files in FOLDER; what each call raises is printed with the time.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
import time

import jax

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start

FOLDER = pathlib.Path(os.environ["FOLDER"])
LIMIT_S = 60.0


def say(line: str) -> None:
    print(line, flush=True)


def await_file(name: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.02)


def say_when_inside() -> None:
    deadline = time.monotonic() + LIMIT_S
    while jaxring.counters()["in_flight"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    say("inside")


def main() -> None:
    jax.config.update("jax_enable_recoverability", True)
    mesh = start()
    a = rows(mesh.size, 1 << 12, "float32")
    x = put(mesh, a)
    calls = {
        seconds: over(mesh, lambda v, s=seconds: jaxring.all_reduce(v, AXIS, algorithm="ring", timeout=s))
        for seconds in (2, 50)
    }

    def works() -> None:
        for call in calls.values():
            check(call(x), same(a.sum(0), mesh.size))

    def raises(what: str, seconds: int) -> None:
        began = time.monotonic()
        try:
            jax.block_until_ready(calls[seconds](x))
        except jax.errors.JaxRuntimeError as error:
            say(what + " raised " + json.dumps({"text": str(error), "began": began, "at": time.monotonic()}))
        else:
            sys.exit(f"{what}: no error")

    works()
    say("ready")
    await_file("begin")
    if jax.process_index() == jax.process_count() - 1:
        await_file("cut")  # the others are inside, and wait for this one
    else:
        threading.Thread(target=say_when_inside).start()
    raises("inside", 50)
    await_file("mended")
    say(f"members {jaxring.rebuild(LIMIT_S).processes}")
    works()
    say("idle")
    await_file("cut idle")
    raises("late", 2)
    raises("noticed", 50)
    sys.stdout.flush()
    await_file("done")
    os._exit(0)  # jax.distributed's shutdown would wait for those that are cut off


if __name__ == "__main__":
    main()
