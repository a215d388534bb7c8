"""Measures the order of hosts: what each process of the job that `jaxring tune --ranks` is part of does.

The first process of each host measures and answers for it. Process 0 searches (`topology.search.measured`): it
publishes the pairs of each step in the job's store, their first hosts measure them and publish the results. In the end
it publishes the order, which the first process of each host writes to its own cache.
"""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

from jaxring import _compat
from jaxring.bench.status import Status
from jaxring.errors import JaxringError, JoinError
from jaxring.settings import settings
from jaxring.topology import order as orders
from jaxring.topology.order import Hop, Order
from jaxring.topology.search import measured
from jaxring.world import launch, wire
from jaxring.world.probing import PROBE_S, Probed, Prober
from jaxring.world.store import JaxStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.topology.search.measured import Found, Pair
    from jaxring.world.store import Store

# What a ring's message is priced with: long ones are what rings are taken for.
MESSAGE_BYTES = 1 << 20
_PREFIX = "jaxring/order/"
_MOST_BYTES = 1 << 24
# A step waits for the slowest pair of the one before.
_STEP_S = 2 * PROBE_S + 30


class Session:
    """This process's part: ``own`` is its number among ``hosts``, the processes that measure; None: it does not.

    ``say``: takes what is being done, in the process that searches.
    """

    def __init__(self, store: Store, prober: Prober, say: Callable[[str], None] | None = None) -> None:
        self._store, self._prober, self._say = store, prober, say or (lambda _: None)
        infos = [prober.info(process) for process in range(prober.count)]
        first: dict[str, int] = {}
        for info in infos:
            first.setdefault(info.host_id, info.index)
        self.hosts = list(first.values())
        self.names = [infos[process].hostname for process in self.hosts]
        self.own = self.hosts.index(prober.process) if prober.process in self.hosts else None
        self._step = 0
        self._probed: dict[Pair, Probed] = {}

    def search(self) -> tuple[Order, Found]:
        """Finds the order, and publishes it; process 0's part. What it raises ends the others, too."""
        try:
            if len(self.hosts) < 2:
                raise JaxringError("All processes of this job are on one host: there is nothing to order.")
            if twice := [name for name in self.names if self.names.count(name) > 1]:
                raise JaxringError(
                    f"{twice.count(twice[0])} hosts are called {twice[0]}: give each a name of its own, by which an "
                    "order can name it."
                )
            found = measured.find(len(self.hosts), self._measure)
        except Exception as error:
            what = str(error) if isinstance(error, JaxringError) else f"Process 0 failed: {error!r}"
            self._publish({"error": "".join(c if c.isprintable() else " " for c in what)[:4096]})
            raise
        source = f"jaxring tune --ranks of {len(self.hosts)} hosts on {dt.date.today()}"
        ring = [*found.order, found.order[0]]
        hops = [self._hop(a, b) for a, b in itertools.pairwise(ring)]
        self._publish({"order": Order(tuple(hops), source).text()})
        return Order(tuple(hops), source), found

    def follow(self) -> Order:
        """Measures what process 0 asks for until it publishes the order. Raises JaxringError where that fails."""
        while True:
            step, self._step = self._step, self._step + 1
            message = _read(self._store, f"step/{step}")
            if "error" in message:
                raise JaxringError(wire.text(message["error"], "error", 4096))
            if "order" in message:
                found = orders.parse(str(message["order"]).encode())
                assert found is not None
                return found
            self._answer(step, [(int(a), int(b)) for a, b in message["pairs"]])

    def _answer(self, step: int, pairs: list[Pair]) -> None:
        """Measures this host's pair, if there is one whose first it is."""
        for a, b in pairs:
            if a == self.own:
                try:
                    probed = self._prober.probe(self.hosts[b])
                    said: dict[str, Any] = {"probed": list(probed)}
                except JoinError as error:
                    said = {"error": str(error)[:4096]}
                self._store.set(f"{_PREFIX}result/{step}/{a}", wire.encode(said))

    def _measure(self, pairs: list[Pair]) -> dict[Pair, tuple[float, float]]:
        costs: dict[Pair, tuple[float, float]] = {}
        for group in measured.matchings(pairs):
            step = self._step
            self._say(f"measured {len(self._probed)} pairs of {len(self.hosts)} hosts")
            self._publish({"pairs": group})
            self._answer(step, group)
            for a, b in group:
                said = _read(self._store, f"result/{step}/{a}")
                if "error" in said:
                    raise JaxringError(wire.text(said["error"], "error", 4096))
                latency, there, back = (float(value) for value in said["probed"])
                self._probed[a, b] = Probed(latency, there, back)
                costs[a, b] = (latency + MESSAGE_BYTES / there, latency + MESSAGE_BYTES / back)
        return costs

    def _publish(self, message: dict[str, Any]) -> None:
        self._store.set(f"{_PREFIX}step/{self._step}", wire.encode(message))
        self._step += 1

    def _hop(self, a: int, b: int) -> Hop:
        probed = self._probed[min(a, b), max(a, b)]
        rate = probed.there if a < b else probed.back
        return Hop(self.names[a], round(1e6 * probed.latency, 1), round(8e-6 * rate))


def _read(store: Store, key: str) -> dict[str, Any]:
    try:
        return wire.decode(store.get(_PREFIX + key, _STEP_S), _MOST_BYTES)
    except ValueError as error:
        raise JaxringError(f"What another process published as {key} cannot be read: {error}.") from error


def run() -> tuple[Order, Found | None, bool]:
    """The order, what the search says of it (in process 0), and whether this process writes its host's file.

    Joins the job that the environment names. Raises JaxringError where there is none, or a host cannot be measured.
    """
    launch.join("jaxring tune --ranks")
    state = _compat.distributed_state()
    assert state is not None
    process, count = state.process, state.processes
    with Status() as status, Prober(JaxStore(), process, count, state.coordinator or "", settings()) as prober:
        session = Session(JaxStore(), prober, status.say)
        if process == 0:
            order, found = session.search()
            return order, found, True
        return session.follow(), None, session.own is not None
