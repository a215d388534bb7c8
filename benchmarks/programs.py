"""The measurements of docs/benchmarks/programs.md: whole programs, whose collectives XLA inserts, and these alone.

    python -m benchmarks.programs --out DIR
    python -m benchmarks.page DIR docs/benchmarks/programs.md

A row is a layout of processes x devices. Exits with 1 where a result of ours is wrong, or a row cannot be measured.
"""

from __future__ import annotations

import sys

from benchmarks.rows import Row, main
from jaxring.bench.programs import PROGRAMS

SIZES = ("4K", "64K", "1M")
# There are many cases, and each is compiled by each peer.
SECONDS = 0.8
# Of a list of collectives alone. What it takes to start a program of two devices is up to 0.1 ms.
CHAIN = 8
LAYOUTS = ((1, 8, ("xla",)), *((n, m, ("gloo", "mpi")) for n, m in ((2, 1), (2, 2), (4, 1), (4, 2))))


def _row(processes: int, devices: int, peers: tuple[str, ...], alone: bool) -> Row:
    return Row(
        f"{'alone' if alone else 'programs'}-{processes}x{devices}",
        f"{processes} process{'es' * (processes > 1)} x {devices} device{'s' * (devices > 1)}",
        processes,
        devices,
        tuple(PROGRAMS),
        SIZES,
        peers,
        programs=True,
        alone=alone,
        chain=CHAIN if alone else 1,
        seconds=SECONDS,
    )


ROWS = tuple(_row(*layout, alone) for alone in (False, True) for layout in LAYOUTS)


if __name__ == "__main__":
    sys.exit(main("benchmarks.programs", __doc__, ROWS))
