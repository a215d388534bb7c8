"""Which processes hold the others up in collectives: by how much, since when, and what the likely cause is.

A process comes late where it launches a collective later than half of the others, and has spent the time outside of
collectives: what it was late for because an earlier collective ended late for it does not count. What it did meanwhile
says the cause: it computed or was refused a CPU ("compute"), or neither ("input"). A process whose connection carries
far less than those of the others holds them up within the collectives ("network").
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

# So many of the last executions of a call are looked at, and so many have to be there.
WINDOW, FEWEST = 20, 8
# Executions that callers keep: what lasts longer is said to have lasted so long.
KEPT = 8 * WINDOW
# In this share of them a process has to be late, by this share of the time between two executions, at least so long,
# and longer than the clocks may differ. Of the time for which the latest one is waited for a smaller share is enough:
# it would otherwise hide all others.
_SHARE, _OF_PERIOD, _OF_WAITS, _LEAST_NS, _ERRORS = 0.75, 0.1, 0.01, 1_000_000, 4
# The cause is what explains this share of the time by which a process is late. Time without a CPU has to exceed that of
# the others so many times.
_EXPLAINED, _MORE_DELAYED = 0.5, 1.5
# A connection is slow that carries so many times less than others, and is busy in this share of the time, and in the
# smaller share of the time for which the latest process is waited for. Where several are, it is the slowest one and
# those that carry hardly more: others send to its host, and what acknowledges that waits behind its data.
_SLOWER, _BUSY, _BUSY_IN_WAITS, _AS_SLOW = 3.0, 0.25, 0.05, 1.3
_FEWEST_SAMPLES = 2
_NS = 1e9
_Number = TypeVar("_Number", int, float)


class Arrival(NamedTuple):
    """When a process launched an operation, in ns by a clock that all share, and how long it has been in none before:
    -1 where that is not known. ``error``: of that clock, ns."""

    launched: int
    idle: int
    error: int = 0


class Execution(NamedTuple):
    """One execution of a call, by the names of the processes whose arrivals are known."""

    call: str
    arrivals: Mapping[str, Arrival]


class Sample(NamedTuple):
    """What a process has spent up to ``at`` (ns by the shared clock): CPU time, and time in which its threads were
    ready to run and had no CPU. ``link_bytes`` in ``link_ns``: what its slowest busy connection, to process
    ``link_peer``, carried since the sample before (-1: there was none). ``resumable``: how many of the connections that
    it has dialled can go on over another path; ``detours``: how many of them are on another path now, or are lost."""

    at: int
    cpu: int
    delayed: int
    link_peer: int = -1
    link_bytes: int = 0
    link_ns: int = 0
    resumable: int = 0
    detours: int = 0


@dataclasses.dataclass(frozen=True)
class Straggler:
    """A process that holds the others up. ``late_us``: on average, in ``late`` of the last ``executions`` of ``call``,
    for ``seconds`` so far. ``error_us``: how exactly the clocks are known. ``cause``: compute, input, network, or
    unknown. ``why``: a sentence with the figures that speak for it."""

    process: str
    call: str
    cause: str
    why: str
    late_us: float
    error_us: float
    late: int
    executions: int
    seconds: float

    def __str__(self) -> str:
        amount = f"{self.late_us / 1e3:.3g} ms"
        if self.cause == "network":
            held = f"{self.process} holds the others up in {self.call}, by {amount} in each execution"
        else:
            exact = f" (clocks agree to {self.error_us / 1e3:.2g} ms)" if self.error_us else ""
            held = (
                f"{self.process} comes late to {self.call}, by {amount}{exact} in {self.late} of the last "
                f"{self.executions} executions"
            )
        return f"{held}, for {self.seconds:.1f} s so far. Likely cause: {self.cause}: {self.why}"


def find(
    executions: Iterable[Execution], samples: Mapping[str, Sequence[Sample]], hosts: Mapping[str, str] | None = None
) -> list[Straggler]:
    """Those whose lateness lasts, by the last `WINDOW` executions of each call, the latest first.

    ``executions`` are in order, and only of collectives in which every process waits for all others. Those before the
    last ones tell since when it has lasted. ``hosts``: of the processes, as far as they are known.
    """
    by_call: dict[str, list[Execution]] = collections.defaultdict(list)
    for execution in executions:
        if len(execution.arrivals) > 1:
            by_call[execution.call].append(execution)
    found: dict[str, Straggler] = {}
    # Where a process has no CPU, the connections to it and from it are slow, too: not so where it computes more.
    without_cpu: set[str] = set()
    for call, of_call in by_call.items():
        for straggler, lacks_cpu in _late(call, of_call, samples):
            if lacks_cpu:
                without_cpu.add(straggler.process)
            known = found.get(straggler.process)
            if known is None or straggler.late_us > known.late_us:
                found[straggler.process] = straggler
    for straggler in _slow_links(by_call, samples, hosts or {}, without_cpu, set(found)):
        found.setdefault(straggler.process, straggler)
    return sorted(found.values(), key=lambda each: -each.late_us)


def _late(
    call: str, executions: Sequence[Execution], samples: Mapping[str, Sequence[Sample]]
) -> Iterable[tuple[Straggler, bool]]:
    """Those that come late to the call, and whether each is late for lack of a CPU."""
    last = executions[-WINDOW:]
    if len(last) < FEWEST:
        return
    begins = [_lower_median([a.launched for a in each.arrivals.values()]) for each in executions]
    period, waits = _period(executions)
    names = collections.Counter(name for each in last for name in each.arrivals)
    for name, there in names.items():
        if there < FEWEST:
            continue
        error = max(each.arrivals[name].error for each in last if name in each.arrivals)
        limit = max(_OF_PERIOD * (period - waits) + _OF_WAITS * waits, _LEAST_NS, _ERRORS * error)
        # By execution, the oldest first.
        lateness = [(begin, _lateness(each, name)) for begin, each in zip(begins, executions, strict=True)]
        mine = [late for _, late in lateness[-len(last) :] if late is not None]
        over = [late for late in mine if late > limit]
        if len(over) < _SHARE * len(mine):
            continue
        since = _since(lateness, limit)
        cause, why, lacks_cpu = _cause(name, begins[-len(last)], begins[-1], sum(mine), samples)
        mean = statistics.fmean(over)
        seconds = (begins[-1] - since) / _NS
        straggler = Straggler(name, call, cause, why, mean / 1e3, error / 1e3, len(over), len(mine), seconds)
        yield straggler, lacks_cpu


def _period(executions: Sequence[Execution]) -> tuple[float, float]:
    """The time between two of the last executions, and for how much of it the latest process was waited for, in ns."""
    last = executions[-WINDOW:]
    begins = [_lower_median([a.launched for a in each.arrivals.values()]) for each in (last[0], last[-1])]
    period = max((begins[1] - begins[0]) / (len(last) - 1), 1)
    waits = statistics.fmean(max(_lateness(each, name) or 0 for name in each.arrivals) for each in last)
    return period, min(waits, period)


def _lateness(execution: Execution, name: str) -> int | None:
    """How late the process came by its own doing, in ns; None where it took no part or nothing is known of it."""
    mine = execution.arrivals.get(name)
    if mine is None:
        return None
    late = mine.launched - _lower_median([each.launched for each in execution.arrivals.values()])
    idle = [each.idle for each in execution.arrivals.values() if each.idle >= 0]
    if mine.idle >= 0 and len(idle) > 1:
        late = min(late, mine.idle - _lower_median(idle))
    return max(late, 0)


def _since(lateness: Sequence[tuple[int, int | None]], limit: float) -> int:
    """When it began: from there on no two executions in a row were in time."""
    since, missed = lateness[-1][0], 0
    for begin, late in reversed(lateness):
        if late is None:
            continue
        missed = 0 if late > limit else missed + 1
        if missed > 1:
            break
        if not missed:
            since = begin
    return since


def _cause(
    name: str, begin: int, end: int, late: int, samples: Mapping[str, Sequence[Sample]]
) -> tuple[str, str, bool]:
    """The cause, the sentence that says why, and whether it is the lack of a CPU."""
    rates = {who: rate for who, of_it in samples.items() if (rate := _rates(of_it, begin, end)) is not None}
    others = [rate for who, rate in rates.items() if who != name]
    if name not in rates or not others or end <= begin:
        return "unknown", "there are no samples of what it did.", False
    missing = late / (end - begin)
    usual = [_lower_median([rate[i] for rate in others]) for i in (0, 1)]
    cpu, delayed = (max(0.0, rates[name][i] - usual[i]) for i in (0, 1))
    # The time without a CPU is a sum over threads, which on a busy host is large in every process.
    if rates[name][1] < _MORE_DELAYED * usual[1]:
        delayed = 0.0
    if cpu + delayed < _EXPLAINED * missing:
        why = (
            "it sleeps outside of collectives, as where it waits for input, a lock or a disk: in each second it has "
            f"used {cpu:.2f} s of a CPU more than the others, and its threads have waited {delayed:.2f} s longer for "
            "one."
        )
        return "input", why, False
    if delayed > cpu:
        why = (
            f"in each second its threads, together, have waited {delayed:.2f} s longer for a CPU than those of the "
            "others: it has a CPU quota, or shares its CPUs with other programs."
        )
        return "compute", why, True
    why = f"in each second it has used {cpu:.2f} s of a CPU more than the others: it has more to compute, or is slower."
    return "compute", why, False


def _rates(samples: Sequence[Sample], begin: int, end: int) -> tuple[float, float] | None:
    """CPU time and time without a CPU, both for each second from the last sample before ``begin`` to the first after
    ``end``."""
    inside = [i for i, sample in enumerate(samples) if begin <= sample.at <= end]
    if not inside:
        return None
    first, last = samples[max(0, inside[0] - 1)], samples[min(len(samples) - 1, inside[-1] + 1)]
    if last.at <= first.at:
        return None
    # Times of threads that have ended are no longer counted, so the sum may fall.
    return (last.cpu - first.cpu) / (last.at - first.at), max(0, last.delayed - first.delayed) / (last.at - first.at)


class _Link(NamedTuple):
    peer: int
    rate: float  # bytes a second, while it is busy
    busy: float  # share of the time
    seconds: float
    nbytes: int


def _link(samples: Sequence[Sample], begin: int, late: Collection[str]) -> _Link | None:
    """The connection that was a process's slowest one most often since ``begin``. ``late``: who comes late."""
    last = [sample for sample in samples if sample.at >= begin]
    peers = collections.Counter(sample.link_peer for sample in last if sample.link_peer >= 0 and sample.link_ns > 0)
    peer, times = next(iter(peers.most_common(1)), (-1, 0))
    if times < _FEWEST_SAMPLES:
        return None
    mine = [sample for sample in last if sample.link_peer == peer and sample.link_ns > 0]
    nbytes, ns = sum(each.link_bytes for each in mine), sum(each.link_ns for each in mine)
    # Single samples are far too slow where the kernel had no CPU for acknowledgements, or far too fast. To a process
    # that does not read yet most are too slow on a busy machine.
    rates = sorted(each.link_bytes / each.link_ns for each in mine)
    rate = rates[3 * (len(rates) - 1) // 4 if f"process {peer}" in late else (len(rates) - 1) // 2] * _NS
    # The first one tells what happened since the one before it.
    span = (mine[-1].at - mine[0].at) * times / (times - 1)
    return _Link(peer, rate, ns / span, span / _NS, nbytes) if span > 0 else None


def _slow_for(samples: Sequence[Sample], peer: int, rate: float) -> float:
    """For how many seconds the connection has carried less than ``rate`` bytes a second; a single sample says less."""
    mine = [each for each in samples if each.link_peer == peer and each.link_ns > 0]
    since, faster = mine[-1].at, 0
    for each in reversed(mine):
        faster = faster + 1 if each.link_bytes / each.link_ns * _NS > rate else 0
        if faster > 1:
            break
        if not faster:
            since = each.at
    return (mine[-1].at - since) / _NS


def _slow_links(
    by_call: Mapping[str, Sequence[Execution]],
    samples: Mapping[str, Sequence[Sample]],
    hosts: Mapping[str, str],
    without_cpu: Collection[str],
    late: Collection[str],
) -> Iterable[Straggler]:
    # The data was sent in a collective: in the one of which most is known.
    call = max(by_call, key=lambda each: len(by_call[each]), default="")
    last = by_call.get(call, ())[-WINDOW:]
    if len(last) < FEWEST:
        return
    begins = [_lower_median([a.launched for a in each.arrivals.values()]) for each in last]
    period, waits = _period(last)
    often = _BUSY * (1 - waits / period) + _BUSY_IN_WAITS * waits / period
    links = {
        name: link
        for name, of_it in samples.items()
        if name not in without_cpu
        and (link := _link(of_it, begins[0], late)) is not None
        and f"process {link.peer}" not in without_cpu
    }
    slowest = min((link.rate for link in links.values() if link.busy >= often), default=0.0)
    slow_hosts: set[str] = set()
    for name, link in sorted(links.items(), key=lambda item: item[1].rate):
        others = [other.rate for who, other in links.items() if who != name]
        if not others or link.busy < often:
            continue
        rate = _lower_median(others)
        if link.rate * _SLOWER > rate or link.rate > _AS_SLOW * slowest:
            continue
        if hosts.get(f"process {link.peer}") in slow_hosts:
            continue
        if name in hosts:
            slow_hosts.add(hosts[name])
        executions = max(1, round(link.seconds * _NS / period))
        lost = link.nbytes * (1 / link.rate - 1 / rate) * _NS / executions
        why = (
            f"its connection to process {link.peer} carries {_megabytes(link.rate)} MB/s while it sends, those of "
            f"others {_megabytes(rate)} MB/s."
        )
        seconds = _slow_for(samples[name], link.peer, rate / _SLOWER)
        yield Straggler(name, call, "network", why, lost / 1e3, 0.0, executions, executions, seconds)


def _megabytes(rate: float) -> str:
    """Bytes a second in MB/s, for readers: without an exponent."""
    return f"{rate / 1e6:.3g}" if rate < 1e8 else f"{rate / 1e6:,.0f}"


def _lower_median(values: Sequence[_Number]) -> _Number:
    return sorted(values)[(len(values) - 1) // 2]
