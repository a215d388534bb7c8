"""This process's part in the job: its store, who takes part now, and the World that joins them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import jax

import jaxring._native as _native
from jaxring import _compat
from jaxring.errors import JoinError
from jaxring.runtime.agreement import Agreement
from jaxring.settings import settings
from jaxring.world.join import World
from jaxring.world.membership import Membership, first
from jaxring.world.store import JaxStore
from jaxring.world.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.02
_SLICE_S = 0.5


class Job:
    """Joins the other processes when a plan first needs them. Safe from any thread."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._store: JaxStore | None = None
        self._agreement: Agreement | None = None
        self._membership: Membership | None = None
        self._lock = threading.Lock()
        self.waits = Waits(_native.planning_waits_for)

    def store(self) -> JaxStore:
        """The job's store. JoinError where jax.distributed is not initialised."""
        if self._store is None:
            self._store = JaxStore()
        return self._store

    def membership(self) -> Membership:
        """Who takes part now. Starts JAX's backend."""
        with self._lock:
            if self._membership is None:
                self._membership = first(jax.process_count())
            return self._membership

    def agreement(self) -> Agreement:
        """What compares programs with other processes, in this epoch."""
        with self._lock:
            if self._agreement is None:
                self._agreement = Agreement(_native, self.store, jax.process_index())
            return self._agreement

    def converse(self) -> None:
        """Hears what other processes say of their programs, and looks whether these differ."""
        while (note := _native.next_control_message()) is not None:
            self.agreement().hear(*note)
        if self._agreement is not None:
            self._agreement.settle()

    def connections(self) -> tuple[int, int]:
        """Connections to this process since it joined its peers: those that were accepted, those of them refused."""
        world = self._world
        return (0, 0) if world is None else world.connections()

    def addresses(self) -> tuple[tuple[str, str, int], ...]:
        """Where this process awaits its peers: (interface, address, port); nowhere before it has joined them."""
        return () if self._world is None else self._world.own.addresses

    def joined(self) -> bool:
        """Whether this process has made itself known to the others."""
        return self._world is not None

    def join(self, membership: Membership) -> World:
        """The World of `membership`, made when it is first asked for. JoinError where that is out of date."""
        with self._lock:
            if self._membership != membership:
                raise JoinError("The job has been rebuilt since this was asked for.")
            if self._world is None:
                self._world = self._make_world(membership, True)
            return self._world

    def _make_world(self, membership: Membership, serving: bool) -> World:
        state = _compat.distributed_state()
        return World(
            self.store(),
            jax.process_index(),
            membership.count,
            _native,
            settings().join_timeout,
            come_s=settings().come_timeout,
            waits=self.waits,
            coordinator=state.coordinator if state is not None else "",
            epoch=membership.epoch,
            members=membership.processes,
            serving=serving,
        )

    def leave(self, deadline: float) -> None:
        """Give the World up: nothing of it reaches the engine any more. JoinError where that is not so in time."""
        with self._lock:
            if self._world is not None:
                self._world.close(deadline)

    def enter(self, membership: Membership, deadline: float, gone: Callable[[], list[int]]) -> None:
        """Begin an epoch: returns when all its members are there. The engine is halted, and resumes.

        JoinError where a member does not come until `deadline` (time.monotonic seconds), or ends before.
        """
        world = self._make_world(membership, False) if len(membership.processes) > 1 else None
        before = gone()  # maybe an earlier start of one that has come back
        try:
            while world is not None:
                # In this order: who begins the epoch sooner says goodbye to the old one, and has come before that.
                left = gone()
                if not (absent := world.absent()):
                    break
                if ended := [p for p in absent if p in left and p not in before]:
                    raise JoinError(f"Process {ended[0]} has ended meanwhile: try again.")
                if time.monotonic() > deadline:
                    raise JoinError(f"Process {absent[0]} has agreed to take part, but does not come: try again.")
                time.sleep(_POLL_S)
            # Links of the new epoch come after those of the old one are gone.
            while not _native.renew(membership.epoch, min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
                # In slices, between which Python sees Ctrl-C.
                if time.monotonic() < deadline:
                    continue
                raise JoinError("An operation of this process has not come to its end: try again.")
        except BaseException:
            if world is not None:
                world.close()
            raise
        with self._lock:
            self._world, self._membership, self._agreement = world, membership, None
        if world is not None:
            world.serve()
        _native.resume()
