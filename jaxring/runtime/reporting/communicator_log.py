"""The log's line about a communicator: the ranks of a collective, and how this process reaches the others."""

from __future__ import annotations

import collections
import itertools
import logging
from typing import TYPE_CHECKING

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

logger = logging.getLogger("jaxring.runtime")


class CommunicatorLog:
    """Logs one line, at level INFO, for each communicator."""

    def __init__(self) -> None:
        self._said: set[Hashable] = set()

    def say(
        self,
        engine: str,
        communicator: Hashable,
        devices: Sequence[int],
        owners: Sequence[int],
        own: int,
        hosts: int,
        transport_of: Callable[[int], str] | None,
    ) -> None:
        """``communicator`` tells it from others of this engine. ``transport_of`` gives how this process reaches another
        one, None where there is none; JoinError where it cannot. The other arguments are those of `describe`.
        """
        if (engine, communicator) in self._said or not logger.isEnabledFor(logging.INFO):
            return
        self._said.add((engine, communicator))
        ways: dict[int, str] = {}
        lacking: dict[int, str] = {}
        if transport_of is not None:
            for process in sorted(set(owners) - {own}):
                try:
                    ways[process] = transport_of(process)
                except JoinError as error:  # which matters only where the plan has a link between the two
                    lacking[process] = str(error)
        logger.info("%s", describe(engine, devices, owners, own, hosts, ways, lacking))

    def forget(self) -> None:
        """Another job begins."""
        self._said.clear()


def describe(
    engine: str,
    devices: Sequence[int],
    owners: Sequence[int],
    own: int,
    hosts: int,
    ways: Mapping[int, str],
    lacking: Mapping[int, str],
) -> str:
    """The line about a communicator of the CPU or GPU ``engine``.

    ``devices``, ``owners``: the device and the process of each rank. ``own``: this process. ``hosts``: how many there
    are. ``ways``: of other processes, how this one reaches them. ``lacking``: of those that it cannot reach, why.
    """
    ranks = [rank for rank, process in enumerate(owners) if process == own]
    size = f"{_count(len(owners), 'rank')}, {_count(len(set(owners)), 'process')}, {_count(hosts, 'host')}"
    which = f"device{'s' * (len(devices) > 1)} {_runs(devices)}"
    here = f"rank{'s' * (len(ranks) > 1)} {_runs(ranks)}" if ranks else "no rank"
    by_way: dict[str, list[int]] = collections.defaultdict(list)
    for process, way in ways.items():
        by_way[way].append(process)
    others = "".join(f"; {_processes(processes)} by {way}" for way, processes in sorted(by_way.items()))
    if lacking:
        first = min(lacking)  # errors that name their process are long, and alike
        which_one = f", process {first} because" if len(lacking) > 1 else ""
        others += f"; {_processes(lacking)} cannot be reached{which_one}: {lacking[first].rstrip('.')}"
    return f"{engine} communicator of {size} ({which}): process {own} has {here}{others}"


def _processes(numbers: Collection[int]) -> str:
    return f"process{'es' * (len(numbers) > 1)} {_runs(sorted(numbers))}"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural * (number != 1)}"


def _runs(numbers: Iterable[int]) -> str:
    """Such as "0-3, 8"."""
    runs = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        runs.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(runs)
