"""This process's part in the job: the store, the members of the current epoch, and the World that links them."""

from __future__ import annotations

import collections
import itertools
import threading
import time
from typing import TYPE_CHECKING

import jax

import jaxring._native as _native
from jaxring import _compat
from jaxring.errors import JoinError
from jaxring.runtime.agreement import Agreement
from jaxring.runtime.reporting.viewing import FlightService
from jaxring.settings import settings
from jaxring.world.job_world import World
from jaxring.world.membership import Membership, first, gone_on
from jaxring.world.store import JaxStore
from jaxring.world.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_POLL_S = 0.02
_SLICE_S = 0.5
# How long a member may take to come that has agreed, though its end was reported before: the report may be wrong.
_GRACE_S = 3.0


class Job:
    """Joins the other processes when a plan first needs them. Safe from any thread."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._store: JaxStore | None = None
        self._agreement: Agreement | None = None
        self._membership: Membership | None = None
        self._entering: Membership | None = None
        self._suspended = False
        # By epoch: a process that is started again has made none in earlier ones.
        self._communicators: dict[int, itertools.count[int]] = collections.defaultdict(itertools.count)
        self._lock = threading.Lock()
        self.waits = Waits(_native.planning_waits_for)
        # The bus ids of this process's GPUs, whose messages take the links to other processes, too.
        self.gpus: Callable[[], Sequence[str]] = tuple

    def store(self) -> JaxStore:
        """The job's store. JoinError where jax.distributed is not initialised."""
        if self._store is None:
            self._store = JaxStore()
        return self._store

    def membership(self) -> Membership:
        """The members of the current epoch. Starts JAX's backend."""
        with self._lock:
            if self._membership is None:
                self._membership = first(jax.process_count())
            return self._membership

    def agreed(self) -> Membership:
        """The members of the latest epoch that this process has tried to enter: it cannot enter that one again."""
        current = self.membership()
        with self._lock:
            return self._entering or current

    def next_communicator(self) -> str:
        """The name of this process's next communicator, the same in all that make them in the same order."""
        epoch = self.membership().epoch
        with self._lock:
            return f"communicator {epoch}.{next(self._communicators[epoch])}"

    def agreement(self) -> Agreement:
        """The object that compares programs with other processes, in this epoch."""
        with self._lock:
            if self._agreement is None:
                self._agreement = Agreement(_native, self.store, jax.process_index())
            return self._agreement

    def converse(self) -> None:
        """Reads the control messages in which other processes describe their programs, and compares these."""
        while (message := _native.next_control_message()) is not None:
            self.agreement().receive(message.sender, message.text)
        if self._agreement is not None:
            self._agreement.settle()

    def connections(self) -> tuple[int, int]:
        """How many connections this process has accepted since it joined its peers, and how many of them it refused."""
        world = self._world
        return (0, 0) if world is None else world.connections()

    def addresses(self) -> tuple[tuple[str, str, int], ...]:
        """Where this process listens for peers: (interface, address, port). Empty before it has joined them."""
        return () if self._world is None else self._world.own.addresses

    def world_of(self, processes: Collection[int]) -> World | None:
        """The World where it is up and all of these processes have published themselves in it, without waiting."""
        world = self._world
        return None if world is None or set(processes) & set(world.absent()) else world

    def joined(self) -> bool:
        """Whether this process takes part: it has published itself to others, or agreed with them on the members."""
        if self._world is not None or self._suspended:
            return True
        # The only survivor of a job has no World.
        found = self._membership
        return found is not None and found.count > 1 and found.epoch > 0

    def world(self) -> World | None:
        """The World of the current epoch, where there is one by now."""
        return self._world

    def join(self, membership: Membership) -> World:
        """The World of `membership`, made when it is first asked for, for the engines of CPUs and of GPUs together.

        JoinError where that is out of date, or suspended.
        """
        with self._lock:
            if self._membership != membership:
                raise JoinError("The job has been rebuilt since this was asked for.")
            if self._suspended:
                raise JoinError("The job is suspended: call jaxring.resume() first.")
            if self._world is None:
                self._world = self._make_world(membership, True)
            return self._world

    def _make_world(self, membership: Membership, serving: bool) -> World:
        state = _compat.distributed_state()
        coordinator = state.coordinator if state is not None else ""
        return World(
            self.store(),
            jax.process_index(),
            membership.count,
            _native,
            settings().join_timeout,
            come_s=settings().come_timeout,
            waits=self.waits,
            coordinator=coordinator,
            epoch=membership.epoch,
            members=membership.processes,
            serving=serving,
            gpus=self.gpus(),
            viewer_service=FlightService(_native.record_memory, coordinator, settings().tls),
        )

    def leave(self, deadline: float) -> None:
        """Make no more links in this epoch: see `World.leave`. JoinError where that takes too long."""
        with self._lock:
            if self._world is not None:
                self._world.leave(deadline)

    def gone(self) -> list[int]:
        """The processes that have ended, as the engine knows, or as it seems since they refuse connections."""
        world = self._world
        return sorted({*_native.gone(), *(() if world is None else world.refusing())})

    def _close(self, deadline: float) -> None:
        with self._lock:
            if self._world is not None:
                self._world.close(deadline)

    def suspend(self, membership: Membership, deadline: float) -> None:
        """Between `leave` and `enter` of an epoch: the halted engine gives up all links and their memory."""
        self._close(deadline)
        _give_up_links(membership.epoch, deadline)
        with self._lock:
            self._world, self._membership, self._agreement = None, membership, None
            self._entering, self._suspended = None, True

    def forget(self) -> None:
        """A suspended process leaves the job for another one of jax.distributed, in which it begins anew."""
        with self._lock:
            self._store = self._membership = self._entering = self._agreement = None
            self._suspended = False
            self._communicators.clear()

    def suspended(self) -> bool:
        """Whether this process has no links until it enters the epoch of its membership."""
        return self._suspended

    def enter(
        self,
        membership: Membership,
        deadline: float,
        gone: Callable[[], list[int]],
        returned: Collection[int] = (),
    ) -> None:
        """Begin an epoch: waits for all its members, then has the engine, which is halted, resume.

        ``returned``: members that were started again, so that `gone` may name the process that they stand in for.
        JoinError where a member has not come by `deadline` (time.monotonic seconds) or has ended, as far as this
        process knows or another one, which then calls again.
        """
        with self._lock:
            self._entering = membership
        # Until now its connections could go over to other paths while others had not called yet. The new World may need
        # the ports of the old one (JAXRING_PORT_RANGE).
        self._close(deadline)
        world = self._make_world(membership, False) if len(membership.processes) > 1 else None
        before, patience, look = gone(), time.monotonic() + _GRACE_S, time.monotonic() + _SLICE_S
        others: tuple[int, ...] = ()
        started: tuple[int, ...] = ()
        try:
            while world is not None:
                # Both are read before `absent`: a member publishes itself in the new epoch before it leaves the old,
                # and has seen all others there before it calls for the next.
                left = gone()
                if time.monotonic() > look:
                    others, started = gone_on(self.store(), jax.process_index(), membership)
                    look = time.monotonic() + _SLICE_S
                if not (absent := world.absent()):
                    break
                late = time.monotonic() > patience
                ended = [p for p in absent if p in left and (p not in before or (late and p not in returned))]
                if ended := [*started, *ended]:
                    raise JoinError(f"Process {ended[0]} has ended while the job was formed anew: try again.")
                if others:
                    raise JoinError(
                        f"Process {others[0]} has given up waiting for process {absent[0]}, which had agreed to take "
                        "part: try again."
                    )
                if time.monotonic() > deadline:
                    raise JoinError(f"Process {absent[0]} has agreed to take part but has not come: try again.")
                time.sleep(_POLL_S)
            # No link of the new epoch is made before the engine has given up those of the old one.
            _give_up_links(membership.epoch, deadline)
        except BaseException:
            if world is not None:
                world.close()
            raise
        with self._lock:
            self._world, self._membership, self._agreement = world, membership, None
            self._entering, self._suspended = None, False
        if world is not None:
            world.serve()
        _native.resume()


def _give_up_links(epoch: int, deadline: float) -> None:
    """Has the halted engine begin an epoch. JoinError where an operation has not ended by ``deadline``."""
    while not _native.renew(epoch, min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
        # In slices, between which Python sees Ctrl-C.
        if time.monotonic() >= deadline:
            raise JoinError("An operation of this process has not ended in time: try again.")


_own = Job()


def own() -> Job:
    """The part of this process."""
    return _own
