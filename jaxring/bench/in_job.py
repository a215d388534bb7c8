"""The processes of a job that something else has started, as a crew that the benchmark asks.

Process 0 measures; the others do what it says. Requests and answers go through `jax.distributed`'s key-value store, so
that they meet nothing of what is measured. As anybody on the job's network can write there, they are JSON.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Self

import jax

from jaxring import _compat
from jaxring.bench import member
from jaxring.bench.backends.jax_programs import Backend
from jaxring.bench.peers import is_ours
from jaxring.bench.work import Case
from jaxring.errors import JaxringError
from jaxring.world import launch, wire
from jaxring.world.store import JaxStore

if TYPE_CHECKING:
    from types import TracebackType

    from jaxring.bench.peers import Peer
    from jaxring.world.store import Store

# What a process of JAX can measure in turn; others want jobs of their own.
PEERS = ("jaxring", "gloo")
ANSWER_S = 120.0
# Process 0 draws tables and saves files between two requests.
REQUEST_S = 600.0
_PREFIX = "jaxring/bench/"
_MOST_BYTES = 1 << 22


class Members:
    """This process's part in the benchmark of its job, and on process 0 the others', too.

    ``process`` of ``count``, which have ``devices`` each.
    """

    def __init__(self) -> None:
        """Joins the job that the environment names. Raises JoinError where there is none."""
        launch.join("jaxring bench --job")
        state = _compat.distributed_state()
        assert state is not None
        self.process, self.count = state.process, state.processes
        os.environ["JAX_NUM_PROCESSES"] = str(self.count)  # for the backends
        self.devices = jax.local_device_count()  # JAX starts its backend in all processes together
        self._store: Store = JaxStore()
        self._requests = 0
        self._backends: dict[str, Backend] = {}

    def ask(self, peer: str, name: str, arguments: Any) -> list[Any]:
        """The answers of all processes to what ``peer`` shall do. On process 0. Raises JaxringError where one fails."""
        number = self._requests
        self._requests += 1
        case = dataclasses.asdict(arguments) if isinstance(arguments, Case) else None
        request = {"peer": peer, "name": name, "case": case, "rest": None if case else arguments}
        self._store.set(f"{_PREFIX}{number}", wire.encode(request))
        own = self._answer(request)
        raw = [self._store.get(f"{_PREFIX}{number}/{process}", ANSWER_S) for process in range(1, self.count)]
        answers = [own, *(wire.decode(each, _MOST_BYTES) for each in raw)]
        for process, answer in enumerate(answers):
            if answer["error"]:
                raise JaxringError(f"process {process}: {answer['error']}")
        return [answer["value"] for answer in answers]

    def serve(self) -> None:
        """Do what process 0 says, until it has nothing more."""
        while True:
            key = f"{_PREFIX}{self._requests}"
            self._requests += 1
            request = wire.decode(self._store.get(key, REQUEST_S), _MOST_BYTES)
            if request["name"] == "end":
                return
            self._store.set(f"{key}/{self.process}", wire.encode(self._answer(request)))

    def end(self) -> None:
        """Have the others return from `serve`. On process 0."""
        self._store.set(f"{_PREFIX}{self._requests}", wire.encode({"name": "end"}))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        arguments = request["rest"] if request["case"] is None else Case(**request["case"])
        try:
            peer = request["peer"]
            if peer not in self._backends:
                self._backends[peer] = Backend(peer)
            return {"error": "", "value": member.answer(self._backends[peer], request["name"], arguments)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}", "value": None}


class JobCrew:
    """One peer in the job: what `Crew` is for processes that the benchmark has started itself."""

    def __init__(self, peer: Peer, members: Members) -> None:
        self.peer, self.processes = peer, members.count
        self.ranks = jax.device_count()
        self.lost = ""
        self._members = members

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Its processes are the job's."""

    def give_up(self, why: str) -> None:
        """It is asked no more."""
        self.lost = why

    def ask(self, name: str, arguments: Any = None) -> list[Any]:
        """The answers of all processes, in their order. Raises JaxringError where one fails or says nothing."""
        if name == "choice" and not is_ours(self.peer.name):
            return [""]  # what the process remembers is jaxring's choice
        return self._members.ask(self.peer.name, name, arguments)
