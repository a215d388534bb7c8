"""A process of a job that adds until the test says stop, while it cuts links; each sum is compared to the bit.

With WAITS=P process P waits in rebuild() meanwhile, until the test says stop and the others call it, too. With PAUSES=S
the processes add once, and again when the test says stop, and dialling takes S seconds more. With CROSSED=S a control
connection is used by the process that has accepted it S seconds before it is used by the one that has dialled it.

The log goes to stdout, so that the test can wait for its lines.
"""

from __future__ import annotations

import logging
import os
import pathlib
import statistics
import sys
import time

import jax
import numpy as np

import jaxring
from jaxring.world import World, links
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start

FOLDER = pathlib.Path(os.environ["FOLDER"])


def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s", force=True)
    mesh = start()
    calls = {name: over(mesh, lambda v, n=name: jaxring.all_reduce(v, AXIS, algorithm=n)) for name in ("ring", "tree")}
    stop = over(mesh, lambda v: jaxring.all_reduce(v, AXIS, "max"))

    def add(number: int) -> None:
        a = rows(mesh.size, 1 << 18, seed=number)
        for name, call in calls.items():
            check(call(put(mesh, a)), same(a.sum(0), mesh.size), (name, number))

    if "CROSSED" in os.environ:
        ask = links.ask

        def late(sock, session, request, *arguments):
            answer = ask(sock, session, request, *arguments)
            time.sleep(float(os.environ["CROSSED"]) * (request["transport"] == "control"))
            return answer

        links.ask = late
    if "PAUSES" in os.environ:
        dial = World._dial_again
        World._dial_again = lambda *arguments: time.sleep(float(os.environ["PAUSES"])) or dial(*arguments)
        add(1)
        print("ready", flush=True)
        while not (FOLDER / "stop").exists():
            time.sleep(0.05)
        add(2)
        print("right", flush=True)
        jax.distributed.shutdown()
        return
    if "WAITS" in os.environ:
        add(1)
        print("ready", flush=True)
        while int(os.environ["WAITS"]) != jax.process_index() and not (FOLDER / "stop").exists():
            time.sleep(0.05)
        print(f"rebuilt {jaxring.rebuild(100).processes}", flush=True)
        add(2)
        jax.distributed.shutdown()
        return
    stopped = False
    number = 0
    took = []
    while not stopped:
        number += 1
        began = time.monotonic()
        add(number)
        took.append(time.monotonic() - began)
        said = np.zeros((mesh.size, 1), np.float32) + (FOLDER / "stop").exists()
        stopped = bool(np.asarray(stop(put(mesh, said)).addressable_shards[0].data)[0, 0])
        if number == 2:
            print("ready", flush=True)
    usual = statistics.median(took)
    print(f"right {number}, a round took {usual:.2f} s, one of them {max(took[1:]) - usual:.2f} s more", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        print(error, flush=True)
        # When the coordinator's process ends, jax.distributed ends the others, which have an error of their own.
        while not (FOLDER / "over").exists():
            time.sleep(0.05)
        os._exit(3)  # jax.distributed would wait for the process that is gone
