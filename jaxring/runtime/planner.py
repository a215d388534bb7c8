"""Makes a plan for a call site: who the ranks are, how they reach each other, which schedule, how it is cut."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxring._native as _native
from jaxring import _compat
from jaxring.checks import SCHEDULED_AS
from jaxring.errors import JoinError
from jaxring.plan import dtypes, tuner, user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.algorithms.halves import build_half
from jaxring.plan.schedule import COLLECTIVES, Schedule, Spec
from jaxring.runtime.explain import Decision, record
from jaxring.settings import settings
from jaxring.world.join import World
from jaxring.world.store import JaxStore

logger = logging.getLogger("jaxring.runtime")

_PROTOCOLS = {"memory": 0, "ll": 1, "simple": 2}
_HALVES = {"both": 0, "send": 1, "recv": 2}
# A tile of a memory schedule: large enough to cost nothing per tile, small enough to share lanes fairly.
_MEMORY_TILE_BYTES = 256 * 1024


class Place(NamedTuple):
    """Where a rank lives."""

    process: int
    device: int


class Planner:
    """Answers planning requests. Joins the other processes when a plan first needs them."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._store: JaxStore | None = None
        self._lock = threading.Lock()

    def asks_peers(self, request: _native.PlanRequest) -> bool:
        """Whether planning waits for other processes to reach the same call."""
        return jax.process_count() > 1 and self._known_devices(request, json.loads(request.spec)) is None

    def plan(self, request: _native.PlanRequest) -> _native.PlanBuilder:
        """A native plan for the request. Raises JoinError, PlanError, or ValueError for what cannot be done."""
        spec = json.loads(request.spec)
        process, processes = jax.process_index(), jax.process_count()
        places = self._places(request, spec, process, processes)
        world = self._join(process, processes) if any(p.process != process for p in places) else None
        collective = SCHEDULED_AS.get(spec["collective"], spec["collective"])
        hosts = self._hosts(places, world)
        element = dtypes.element_bytes(spec["dtype"])
        in_blocks = COLLECTIVES[collective][0] or len(places)
        nbytes = spec["block"] * element * in_blocks
        ragged = spec["collective"] == "ragged_all_to_all"
        half = spec["half"]
        # Halves of a point-to-point message run apart from each other, so they cannot read each other's memory.
        apart = half != "both"
        nodes = tuple(range(len(places))) if apart else _normalise([p.process for p in places])
        if ragged:
            # Sizes are known only when it runs: `block` counts the whole operand.
            nbytes = spec["block"] * element
        choice = _users_choice(collective, nodes, spec) or tuner.choose_among(
            settings().algo or (None,),
            settings().proto or (None,),
            collective,
            nodes,
            hosts,
            nbytes,
            spec["dtype"],
            algorithm=spec["algorithm"],
            protocol=spec["protocol"] or ("simple" if ragged and len(set(nodes)) > 1 else None),
            ll_bytes=_native.ll_payload_bytes(),
        )
        channels = 1 if ragged or apart else choice.channels
        schedule = _schedule(
            half,
            Spec(
                collective,
                len(places),
                choice.algorithm,
                root=spec["root"],
                channels=channels,
                placement=nodes,
                perm=tuple((s, t) for s, t in spec["perm"]),
            ),
        )
        local = [rank for rank, place in enumerate(places) if place.process == process]
        links, transports = self._connect(schedule, places, local, world)

        plan = _native.PlanBuilder()
        what = _describe(spec)
        key, check = _key(request, spec, places), _number(f"{spec['dtype']}{spec['shape']}", 4)
        plan.set_identity(what, key, check, _HALVES[half], spec["timeout"], process)
        op = spec["op"]
        divisor = len(places) if op == "mean" else 0
        block = 0 if ragged else spec["block"]
        plan.set_data(dtypes.dtype_code(spec["dtype"]), -1 if op is None else dtypes.REDUCE_OPS[op], divisor, block)
        plan.set_shape(
            schedule.in_blocks, schedule.out_blocks, schedule.pieces, schedule.scratch_chunks, schedule.nlanes
        )
        widest = element if op is None else max(element, dtypes.accumulator_bytes(spec["dtype"]))
        plan.set_protocol(_PROTOCOLS[choice.protocol], _tile_elements(choice.protocol, element, widest), links)
        for rank, place in enumerate(places):
            host = world.info(place.process).hostname if world is not None else "this host"
            plan.add_rank(place.process, place.device, f"rank {rank} (process {place.process} on {host})")
        for rank in local:
            steps, lane_begin, peers = _table(schedule, rank)
            plan.add_local(rank, steps, lane_begin, peers)
        decision = Decision(
            collective=spec["collective"],
            op=op,
            dtype=spec["dtype"],
            nbytes=nbytes,
            axes=spec["axes"],
            site=spec["site"],
            ranks=len(places),
            processes=len({p.process for p in places}),
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=channels,
            transports=transports,
            reason=choice.reason,
            candidates=tuple(choice.candidates),
        )
        plan.set_label(decision.label())
        record(decision)
        logger.info("%s", decision)
        return plan

    def _places(self, request: _native.PlanRequest, spec: dict[str, Any], process: int, processes: int) -> list[Place]:
        """Process and device of each rank, in rank order."""
        partitions = request.partitions
        if processes == 1:
            # Device ids only tell ranks apart here, and an abstract mesh does not know them; partition ids do it too.
            return [Place(process, int(p)) for p in partitions]
        devices = self._known_devices(request, spec)
        if devices is None:
            devices = self._exchange_devices(request, spec, len(partitions))
        owner = _device_owners()
        return [Place(owner[d], d) for d in devices]

    @staticmethod
    def _known_devices(request: _native.PlanRequest, spec: dict[str, Any]) -> list[int] | None:
        """The device of each rank as the lowering knew it, unless it knew none or others than those that came."""
        known, partitions = spec["devices"], request.partitions
        if known is None or any(known[partitions[rank]] != device for rank, device in request.arrived()):
            return None
        return [known[p] for p in partitions]

    def _exchange_devices(self, request: _native.PlanRequest, spec: dict[str, Any], ranks: int) -> list[int]:
        """The device of each rank, asked of the ranks: a program over an abstract mesh does not know it."""
        store = self._get_store()
        group = "-".join(str(p) for p in request.partitions)
        name = hashlib.blake2b(f"{request.spec}/{request.ordinal}/{group}".encode(), digest_size=12).hexdigest()
        deadline = time.monotonic() + spec["timeout"]
        said: set[int] = set()
        found: dict[int, int] = {}
        while len(found) < ranks:
            for rank, device in request.arrived():
                if rank not in said:
                    store.set(f"jaxring/devices/{name}/{rank}", str(device).encode())
                    said.add(rank)
                    found[rank] = device
            missing = next((rank for rank in range(ranks) if rank not in found), None)
            if missing is None:
                break
            try:
                found[missing] = int(store.get(f"jaxring/devices/{name}/{missing}", 0.2))
            except JoinError:
                if time.monotonic() > deadline:
                    raise JoinError(
                        f"rank {missing} did not reach {_describe(spec)} in {spec['timeout']:g} s"
                    ) from None
        return [found[rank] for rank in range(ranks)]

    def _get_store(self) -> JaxStore:
        if self._store is None:
            self._store = JaxStore()
        return self._store

    def _join(self, process: int, processes: int) -> World:
        with self._lock:
            if self._world is None:
                state = _compat.distributed_state()
                coordinator = state.coordinator if state is not None else ""
                self._world = World(
                    self._get_store(),
                    process,
                    processes,
                    _native,
                    settings().join_timeout,
                    coordinator=coordinator,
                )
            return self._world

    @staticmethod
    def _hosts(places: list[Place], world: World | None) -> tuple[int, ...]:
        if world is None:
            return (0,) * len(places)
        return _normalise([world.info(p.process).host_id for p in places])

    @staticmethod
    def _connect(
        schedule: Schedule, places: list[Place], local: list[int], world: World | None
    ) -> tuple[int, tuple[str, ...]]:
        """Links to every process that this one sends to; the number of channels, and the transports in use."""
        channels = max(1, min(schedule.nlanes, settings().nsocks))
        transports: set[str] = set()
        for rank in local:
            sends, receives = schedule.message_peers(rank)
            if schedule.uses_memory(rank) or len(places) == 1:
                transports.add("memory")
            for peer in sends | receives:
                target = places[peer].process
                if target == places[rank].process:
                    transports.add("local")
                elif world is not None:
                    transports.add(world.transport(target))
                    if peer in sends:
                        for channel in range(channels):
                            world.link(target, channel)
        return channels, tuple(sorted(transports)) or ("none",)


@functools.lru_cache(maxsize=256)
def _schedule(half: str, spec: Spec) -> Schedule:
    if half != "both":
        return build_half(spec, half)
    return build(spec) if spec.algorithm in ALGORITHMS else user.build_user(spec)


def _users_choice(collective: str, nodes: tuple[int, ...], spec: dict[str, Any]) -> tuner.Choice | None:
    """The choice where the caller asked for an algorithm of their own: nothing is left to choose but the protocol."""
    if user.find(spec["algorithm"]) is None:
        return None
    schedule = user.build_user(Spec(collective, len(nodes), spec["algorithm"], root=spec["root"], placement=nodes))
    messages = any(any(schedule.message_peers(rank)) for rank in range(len(nodes)))
    protocol = spec["protocol"] or ("simple" if messages else "memory")
    if messages and protocol == "memory":
        raise ValueError(f"algorithm {spec['algorithm']!r} sends messages, which protocol 'memory' does not carry")
    return tuner.Choice(spec["algorithm"], protocol, 1, f"algorithm {spec['algorithm']!r} of your own", [])


def _device_owners() -> dict[int, int]:
    return {d.id: d.process_index for d in jax.devices("cpu")}


def _normalise(ids: list[Any]) -> tuple[int, ...]:
    number: dict[Any, int] = {}
    return tuple(number.setdefault(i, len(number)) for i in ids)


def _tile_elements(protocol: str, element: int, widest: int) -> int:
    if protocol == "memory":
        return max(1, _MEMORY_TILE_BYTES // element)
    payload = _native.ll_payload_bytes() if protocol == "ll" else settings().buffsize
    return max(1, payload // widest)


def _table(schedule: Schedule, rank: int) -> tuple[bytes, bytes, bytes]:
    """A rank's table as the engine takes it."""
    table = schedule.table(rank)
    begin, peers = np.asarray(table.lane_begin, dtype="<u4"), np.asarray(table.peers, dtype="<i4")
    return table.steps.tobytes(), begin.tobytes(), peers.tobytes()


def _describe(spec: dict[str, Any]) -> str:
    what = f"{spec['collective']} {spec['op']}" if spec["op"] else spec["collective"]
    shape = ",".join(str(n) for n in spec["shape"])
    return f"jaxring.{what} of {spec['dtype']}[{shape}] over {spec['axes']} at {spec['site']}"


def _key(request: _native.PlanRequest, spec: dict[str, Any], places: list[Place]) -> int:
    """The same number in all processes of the group for one call site, and for both halves of a message queue."""
    devices = [place.device for place in places]
    if spec["half"] == "both":
        identity = f"{request.spec}/{request.ordinal}/{devices}"
    else:
        identity = f"p2p/{spec['tag']}/{spec['perm']}/{devices}"
    return _number(identity, 8)


def _number(text: str, size: int) -> int:
    """A number of ``size`` bytes from a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
