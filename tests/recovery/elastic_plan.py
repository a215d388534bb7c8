"""What happens to a job of changing size, by its seed: who is killed, leaves, joins or comes back, when, with whom.

Changes come in rounds, each at a step that all processes know. In a round several things happen at once:

* "lose": processes are killed or leave, and the others shrink the job.
* "join": all processes that the job has lost are started again, and it is rebuilt with them.
* "grow": the living processes and new ones begin a job of another size.

In a round of the last two kinds each process may be killed in the middle of it. Then it is started again at once, as a
launcher does, and the round ends when all are there. Process 0 lives on, because it holds the coordination service.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np

MOST, ROWS, WIDTH = 5, 60, 16
# When a process is killed: before what the others do next, or a moment after it has begun a step, shrink(), rebuild(),
# to fetch the state, to leave jax.distributed, to initialise it. One that leaves ends orderly, before its next step.
LOSSES = ("before", "step", "step", "shrink", "leave")
RETURNS = ("before", "rebuild", "settle")
GROWTHS = ("before", "leave", "initialise", "rebuild", "settle")
JOINS = ("initialise", "rebuild", "settle")


@dataclasses.dataclass
class Start:
    """A start of a process: in the round ``begin`` (-1: at the beginning), as ``number`` of the ``size`` processes of
    the job ``job``. It is killed in the round ``dies`` at ``moment``, after ``delay_s`` where a moment has a length;
    ``dies`` is -1 for one that lives. ``after``: the start that is to have ended before."""

    name: int
    begin: int
    job: int
    size: int
    number: int
    after: int = -1
    dies: int = -1
    moment: str = ""
    delay_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Round:
    """A change at ``step``; ``numbers`` are the members of the job ``job`` of ``size`` processes after it."""

    kind: str
    step: int
    job: int
    size: int
    numbers: tuple[int, ...]


class Plan:
    """All starts and rounds of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(seed)
        self.seed = seed
        self.devices = chance.choice((1, 1, 2))
        self.shared_memory = chance.random() < 0.7
        self.size = chance.randint(2, 4)
        self.rounds: list[Round] = []
        self.starts: list[Start] = []
        self._job = self._step = 0
        # The start that stands for each number of the job; None where it is lost.
        self._now: list[Start | None] = [self._start(-1, number) for number in range(self.size)]
        for _ in range(chance.randint(2, 4)):
            self._step += chance.randint(1, 3)
            kinds = ["grow"]
            if len(self._living()) > 1:
                kinds += ["lose", "lose"]
            if None in self._now:
                kinds += ["join", "join"]
            getattr(self, f"_{chance.choice(kinds)}")(len(self.rounds))
        self.last_step = self._step + 2

    def _start(self, begin: int, number: int, after: int = -1) -> Start:
        made = Start(len(self.starts), begin, self._job, self.size, number, after)
        self.starts.append(made)
        return made

    def _living(self) -> list[Start]:
        return [start for start in self._now if start is not None]

    def _doom(self, start: Start, moments: tuple[str, ...]) -> str:
        start.dies, start.moment = len(self.rounds), self._chance.choice(moments)
        start.delay_s = self._chance.choice((0.001, 0.01, 0.05, 0.2)) * self._chance.random()
        return start.moment

    def _end_round(self, kind: str) -> None:
        numbers = tuple(number for number, start in enumerate(self._now) if start is not None)
        self.rounds.append(Round(kind, self._step, self._job, self.size, numbers))

    def _some(self, starts: list[Start], chance: float) -> list[Start]:
        """Each of them with that chance, but not process 0, and two at most."""
        found = [start for start in starts if start.name > 0 and self._chance.random() < chance]
        return self._chance.sample(found, min(2, len(found)))

    def _lose(self, _index: int) -> None:
        others = self._living()[1:]
        for start in self._chance.sample(others, self._chance.randint(1, min(2, len(others)))):
            self._doom(start, LOSSES)
            self._now[self._now.index(start)] = None
        self._end_round("lose")

    def _join(self, index: int) -> None:
        for start in self._some(self._living(), 0.3):
            self._doom(start, RETURNS)
            number = self._now.index(start)
            self._now[number] = self._start(index, number, start.name)
        for number, start in enumerate(self._now):
            if start is None:
                self._now[number] = self._newcomer(index, number)
        self._end_round("join")

    def _grow(self, index: int) -> None:
        # One that does not call is no member of the next job; the others are numbered in their order.
        before = self._living()
        doomed = self._some(before, 0.25)
        gone = [start for start in doomed if self._doom(start, GROWTHS) == "before"]
        stay = [start for start in before if start not in gone]
        self._job += 1
        self.size = min(MOST, len(stay) + self._chance.randint(0, 2))
        self._now = []
        for number, start in enumerate(stay):
            self._now.append(self._start(index, number, start.name) if start in doomed else start)
        self._now += [self._newcomer(index, number) for number in range(len(stay), self.size)]
        self._end_round("grow")

    def _newcomer(self, index: int, number: int) -> Start:
        start = self._start(index, number)
        if self._chance.random() < 0.25:
            self._doom(start, JOINS)
            return self._start(index, number, start.name)
        return start

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.devices} devices each, shared memory: {self.shared_memory}"]
        lines += [f"round {index}: {round_}" for index, round_ in enumerate(self.rounds)]
        return "\n".join(lines + [str(start) for start in self.starts])


def rows() -> np.ndarray:
    """What the job trains on, all of it in each step."""
    return np.random.default_rng(3).integers(-1000, 1000, (ROWS, WIDTH), np.int32)


def gradient(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The rows' part of the gradient: whole numbers with wrap-around, whose sum is the same in any order."""
    return x.T @ ((x @ w) ^ x[:, 0])


def update(w: np.ndarray, total: np.ndarray) -> np.ndarray:
    return w - (total >> 7)


def weights(steps: int) -> np.ndarray:
    """The weights after so many undisturbed steps."""
    x, w = rows(), np.zeros(WIDTH, np.int32)
    for _ in range(steps):
        w = update(w, gradient(x, w))
    return w
