"""What the tuner chooses from, and the CPU engine's threads and memory."""

from __future__ import annotations

import dataclasses
import os

from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.gpu import copy_engine, experimental, nvls
from jaxring.plan.protocols import PROTOCOLS
from jaxring.plan.selection import EVERYTHING, Selection
from jaxring.settings import kinds
from jaxring.settings.ranges import Range
from jaxring.settings.row import row


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Choices, threads and memory."""

    algo: Selection = row(
        "list",
        EVERYTHING,
        "Algorithms to choose from, where they are possible; a leading ^ excludes, a leading + adds some that the "
        f"tuner takes only where a call asks for them, such as `nvls`{experimental.mark('nvls', ' (', ')')}; ^pxn+nvls "
        "does both; empty: the tuner's choice.",
        kinds.some_of(*ALGORITHMS, copy_engine.NAME, nvls.NAME, more=True),
        shared=True,
    )
    proto: Selection = row(
        "list",
        EVERYTHING,
        "Protocols to choose from, where they are possible; a leading ^ excludes; empty: the tuner's choice.",
        kinds.some_of(*PROTOCOLS),
        shared=True,
    )
    nchannels: Range = row(
        "range",
        Range(1, 16),
        "How many channels a collective that sends messages has, where its algorithm can use that many: 2-8, 4, or 2- "
        "and -8 with an open end. On a GPU the upper end bounds the lanes (thread blocks) of any collective.",
        kinds.between(1, 64),
        shared=True,
    )
    fusion_bytes: int = row(
        "bytes",
        4 << 20,
        "Neighbouring collectives of a program are fused into one call up to this many bytes per rank; 0: no fusion.",
        kinds.nbytes(0, 1 << 40),
        engines="CPU",
    )
    threads: int = row(
        "integer", 0, "Engine workers; 0: one per core, at most 4.", kinds.integer(0, 256), engines="CPU"
    )
    patience: int = row(
        "integer",
        300,
        "Microseconds for which the thread that launches a small operation between processes polls for its messages "
        "before it hands the operation to the engine's workers, which sleep. It should exceed a round trip.",
        kinds.integer(0, 1_000_000),
        engines="CPU",
    )

    @property
    def worker_threads(self) -> int:
        """Number of engine workers: THREADS, or one per core that this process may use, at most four."""
        return self.threads or max(1, min(4, len(os.sched_getaffinity(0))))

    @property
    def channels(self) -> tuple[int, int]:
        """The fewest and the most of NCHANNELS; an open end is the default's, as far as the other end allows."""
        low = self.nchannels.low or 1
        return low, self.nchannels.high or max(low, 16)
