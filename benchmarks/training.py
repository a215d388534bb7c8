"""Time the collectives of the demo's training step, from profiles: jaxring's against those of JAX's own backend.

    jaxring run -n 4 --devices-per-process 2 --output rank0 -m benchmarks.training

The demo's two training steps, by `jaxring.all_reduce` and by `jax.lax.psum`, take turns of a few steps, each in a
profile of every process. In a step all ranks' gradients go as one collective: its time is that from the arrival of the
last rank of the job to the end of the last one, so without what ranks wait for each other's compute. The job's
processes must share a clock, that is a host.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

import jaxring.profiler
from benchmarks import turns
from jaxring.profiler import xplane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

OURS, XLA = "jaxring.all_reduce", "lax.psum"
_EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def intervals(profile: pathlib.Path, name: str) -> list[tuple[int, int]]:
    """Begin and end in ns since 1970 of the collectives that a profile shows, of whatever local rank, by beginning."""
    began = xplane.start_time_ns(profile)
    found: list[tuple[int, int]] = []
    with xplane.opened(profile) as opened:
        for plane in opened.planes:
            if (plane.name == xplane.PLANE) != (name == OURS):
                continue
            for line in plane.lines:
                found += [
                    (round(event.start_ns), round(event.end_ns))
                    for event in line.events
                    if name == OURS or event.name.startswith("all-reduce")
                ]
    return sorted((began + begin, began + end) for begin, end in found)


def last_arrivals_and_ends(found: Sequence[tuple[int, int]], steps: int) -> NDArray[np.int64]:
    """[steps, 2]: of each step's collective, when its last local rank came and when the last was done."""
    if not found or len(found) % steps:
        raise RuntimeError(f"{len(found)} collectives in a profile of {steps} steps: not so many in each.")
    latest: NDArray[np.int64] = np.max(np.asarray(found, np.int64).reshape(steps, -1, 2), axis=1)
    return latest


class Program:
    """One of the two training steps, and where it stands."""

    def __init__(self, name: str, mesh: jax.sharding.Mesh) -> None:
        # The demo's own modules.
        from lm import train
        from lm.data import Corpus

        mean = {OURS: train.mean_by_jaxring, XLA: train.mean_by_psum}[name]
        self.name = name
        self.prepared = train.prepare(mean, mesh, Corpus(), train.Settings())
        self.done = 0

    def run(self, steps: int) -> float:
        """Seconds."""
        texts = [self.prepared.batch(self.done + i) for i in range(steps)]
        begin = time.perf_counter()
        for text in texts:
            self.prepared.state, _ = jax.block_until_ready(self.prepared.step(self.prepared.state, text))
        self.done += steps
        return time.perf_counter() - begin

    def profiled(self, steps: int) -> tuple[float, NDArray[np.int64]]:
        """Seconds, and what `last_arrivals_and_ends` says of this process."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            with jaxring.profiler.trace(folder, profiler_options=options):
                seconds = self.run(steps)
            (profile,) = pathlib.Path(folder).rglob("*.xplane.pb")
            return seconds, last_arrivals_and_ends(intervals(profile, self.name), steps)


def measure(turn_count: int, steps: int) -> tuple[turns.Times, turns.Times]:
    """Times in s of a step's collective, and of a step."""
    from lm.train import AXIS

    mesh = turns.mesh(AXIS)
    programs = [Program(name, mesh) for name in (OURS, XLA)]
    for program in programs:
        program.run(steps)
    collective: turns.Times = {program.name: [] for program in programs}
    whole: turns.Times = {program.name: [] for program in programs}
    for _ in range(turn_count):
        for program in programs:
            seconds, local = program.profiled(steps)
            # As halves: without jax_enable_x64 JAX has no integers of 64 bits.
            gathered: Any = multihost_utils.process_allgather(local.view(np.int32))
            everybody = np.ascontiguousarray(gathered).view(np.int64).reshape(-1, steps, 2)
            arrived, ended = everybody.max(axis=0).T
            collective[program.name] += [float(ns) * 1e-9 for ns in ended - arrived]
            whole[program.name].append(seconds / steps)
    return collective, whole


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=10, help="turns of each program (default: 10)")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn (default: 5)")
    arguments = parser.parse_args(argv)
    sys.path.insert(0, str(_EXAMPLES))
    collective, whole = measure(arguments.turns, arguments.steps)
    if jax.process_index() != 0:
        return 0
    middle, step = turns.medians(collective), turns.medians(whole)
    turns.report(
        collective,
        f"the collective of a training step, {turns.ranks()}",
        f"{XLA} / {OURS}: {middle[XLA] / middle[OURS]:.2f}; whole steps, profiled: "
        + ", ".join(f"{name} {step[name] * 1e3:.1f} ms" for name in whole),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
