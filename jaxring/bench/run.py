"""A benchmark run: for each case the peers take turns, and each says how long its iterations took."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import statistics
from typing import TYPE_CHECKING, Any

from jaxring.bench import limits
from jaxring.bench.fleet import Crew
from jaxring.bench.in_job import PEERS as IN_JOB
from jaxring.bench.in_job import JobCrew
from jaxring.bench.peers import find, is_ours
from jaxring.bench.work import Case
from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from jaxring.bench.hosts import Hosts
    from jaxring.bench.in_job import Members
    from jaxring.bench.programs import Program

# Iterations of a turn last about this long, so that changes in the machine's speed affect all peers equally.
TURN_S = 0.1
# Shorter iterations are timed in batches that last about this long, as nccl-tests times all of its iterations. One
# process may run ahead of another by a part of an iteration, which must not count as time of the collective.
BATCH_S = 1e-3
# A shaped link lets an idle moment's bytes pass at once, so that a batch of less than this many such buckets shows a
# faster link than there is, and the faster the less a peer sends in it.
BUCKETS = 20
# Batches from which their length is told, and how often at most.
LOOKS = 3
MOST_LOOKS = 8
# Short iterations have several turns, too.
LEAST_TURNS = 8
# A turn begins with one that does not count: there the processes have yet to learn of it, and caches, pages and
# the processors' queues are as the peer before left them.
UNCOUNTED = 1
# Fewer iterations have no quartiles to speak of.
LEAST = 7


@dataclasses.dataclass
class Result:
    """One peer on one case. ``times_us``: an iteration's, of every batch of them, by the slowest process's time."""

    peer: str
    case: Case | Program
    processes: int
    devices: int
    ranks: int
    times_us: list[float]
    wrong: int
    choice: str
    refused: str = ""

    @property
    def median_us(self) -> float:
        """The median; 0 where the peer does not serve the case."""
        return statistics.median(self.times_us) if self.times_us else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles, in us."""
        if len(self.times_us) < 2:
            return self.median_us, self.median_us
        low, _, high = statistics.quantiles(self.times_us, n=4, method="inclusive")
        return low, high

    @property
    def algbw(self) -> float:
        """GB/s: the size over the time of one collective; 0 of a whole program, which has no such size."""
        if not self.times_us or not isinstance(self.case, Case):
            return 0.0
        return self.case.moved(self.ranks) * self.case.chain / self.median_us / 1e3

    @property
    def busbw(self) -> float:
        """GB/s, as nccl-tests has it; 0 of a whole program."""
        return self.algbw * self.case.bus_factor(self.ranks) if isinstance(self.case, Case) else 0.0

    def light(self, copy_gbs: float) -> float:
        """The share that the memory's bound has of a collective's time: 1 is the speed of light."""
        if not self.times_us or copy_gbs <= 0 or not isinstance(self.case, Case):
            return 0.0
        return self.case.memory_traffic(self.ranks) * self.case.chain / (copy_gbs * 1e3) / self.median_us


@dataclasses.dataclass(frozen=True)
class Job:
    """Processes x devices, the peers with the environment of each, and the hosts that they run on, if any.

    ``members``: the processes of a running job, which are measured instead of ones that are started for it.
    """

    processes: int
    devices: int
    peers: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    hosts: Hosts | None = None
    members: Members | None = None

    def crew(self, name: str) -> Crew | JobCrew:
        """The processes of this peer, to be entered."""
        if self.members is not None:
            return JobCrew(find(name), self.members)
        return Crew(find(name), self.processes, self.devices, self.environment, self.hosts)


def installed(job: Job) -> tuple[list[str], dict[str, str]]:
    """The peers that can run, and why the others cannot."""
    reasons = {name: find(name).missing(job.processes, job.devices) for name in job.peers}
    if job.members is not None:
        reasons |= {name: "it is not measured within a job" for name in job.peers if name not in IN_JOB}
    return [name for name, reason in reasons.items() if not reason], {n: r for n, r in reasons.items() if r}


def measure(
    job: Job,
    cases: Sequence[Case | Program],
    iterations: int,
    warmup: int,
    check: bool,
    say: Callable[[str], object],
    seconds: float = math.inf,
) -> Generator[tuple[list[Result], float], None, None]:
    """For each case all results, and the machine's copy bandwidth in GB/s (bytes read plus bytes written) after it.

    A peer makes ``iterations`` of each case, batches of short ones, or stops when they took ``seconds``, but then not
    before a few are made. ``say`` is called with what happens. JaxringError where a peer's job does not start, or
    ours breaks; another peer whose job breaks has no more results from there on, but the reason.
    """
    names, _ = installed(job)
    with contextlib.ExitStack() as stack:
        crews: list[Crew | JobCrew] = []
        for name in names:
            say(f"starting {name}")
            crew = job.crew(name)
            stack.enter_context(crew)
            crews.append(crew)
        for number, case in enumerate(cases, 1):
            what = f"{number} of {len(cases)}: {case.name}, {shown(case.nbytes)}: "
            results = _one(job, crews, case, iterations, warmup, check, functools.partial(_tell, say, what), seconds)
            yield list(results), limits.copy_bandwidth()


def _tell(say: Callable[[str], object], what: str, text: str) -> None:
    say(what + text)


def _one(
    job: Job,
    crews: Sequence[Crew | JobCrew],
    case: Case | Program,
    iterations: int,
    warmup: int,
    check: bool,
    say: Callable[[str], object],
    seconds: float,
) -> Iterator[Result]:
    found = {
        crew: Result(crew.peer.name, case, job.processes, job.devices, crew.ranks, [], 0, "", crew.lost)
        for crew in crews
    }
    turns: dict[Crew | JobCrew, tuple[int, int]] = {}
    batch_s = max(BATCH_S, BUCKETS * job.hosts.bucket_s) if job.hosts else BATCH_S
    for crew, result in found.items():
        say(f"{crew.peer.name} prepares")
        with _may_break(crew, result):
            result.refused = result.refused or next((answer for answer in crew.ask("prepare", case) if answer), "")
            if result.refused:
                continue
            crew.ask("run", (1, 1))  # compiles, plans and connects
            batch, lasts = _pace(crew, warmup, batch_s)
            turns[crew] = max(1, min(iterations // LEAST_TURNS, int(TURN_S / lasts))), batch
    left = dict.fromkeys(turns, iterations)
    order = list(turns)
    # Shuffled, so that no peer always follows the same one. The seed makes runs alike.
    shuffle = random.Random(case.nbytes).shuffle
    while any(left.values()):
        shuffle(order)
        for crew in order:
            count, batch = turns[crew]
            count = min(count, left[crew])
            if count == 0:
                continue
            say(crew.peer.name)
            result = found[crew]
            with _may_break(crew, result):
                times = crew.ask("run", (UNCOUNTED + count, batch))
                slowest = [round(1e6 * max(each), 2) for each in zip(*times, strict=True)]
                result.times_us += slowest[UNCOUNTED:]
            spent = batch * sum(result.times_us) / 1e6
            over = result.refused or (spent > seconds and len(result.times_us) >= LEAST)
            left[crew] = 0 if over else left[crew] - count
    for crew, result in found.items():
        if result.refused:
            continue
        with _may_break(crew, result):
            result.wrong = sum(crew.ask("wrong")) if check else 0
            result.choice = crew.ask("choice")[0]
    yield from found.values()


def _pace(crew: Crew | JobCrew, warmup: int, batch_s: float) -> tuple[int, float]:
    """How many iterations make a batch, and how long it lasts, in s.

    The first ones are slow, so it looks twice at least, and on while that makes batches longer: too short ones would
    measure how processes are woken.
    """
    batch, count = 1, warmup
    for look in range(MOST_LOOKS):
        each = max(1e-7, *map(statistics.median, crew.ask("run", (count, batch))))
        before, batch, count = batch, max(1, round(batch_s / each)), LOOKS
        if look and batch <= 1.25 * before:
            break
    return batch, batch * each


@contextlib.contextmanager
def _may_break(crew: Crew | JobCrew, result: Result) -> Iterator[None]:
    """A peer that is not ours may break: its job is ended, and its result says so."""
    try:
        yield
    except JaxringError as error:
        if is_ours(crew.peer.name):
            raise
        crew.give_up(" ".join(str(error).split()))
        result.times_us, result.refused = [], crew.lost


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Plain data, with all times."""
    return [dataclasses.asdict(result) for result in results]
