"""Makes a plan for a call site: who the ranks are, how they reach each other, which schedule, how it is cut."""

from __future__ import annotations

import functools
import json
import logging
import threading
from typing import Any

import jax

import jaxring._native as _native
from jaxring import _compat
from jaxring.checks import SCHEDULED_AS
from jaxring.plan import dtypes, tuner, user
from jaxring.plan.schedule import COLLECTIVES, Schedule, Spec
from jaxring.runtime import common
from jaxring.runtime.explain import Decision, record
from jaxring.runtime.places import Place, device_owners, exchange_devices, known_devices
from jaxring.settings import settings
from jaxring.world.join import World
from jaxring.world.store import JaxStore

logger = logging.getLogger("jaxring.runtime")

_PROTOCOLS = {"memory": 0, "ll": 1, "simple": 2}
_HALVES = {"both": 0, "send": 1, "recv": 2}
# A tile of a memory schedule: large enough to cost nothing per tile, small enough to share lanes fairly, and for pages
# that are cleared at a tile's first touch to stay in the cache until it is written, in the results of 8 ranks too.
_MEMORY_TILE_BYTES = 64 * 1024


class Planner:
    """Answers planning requests. Joins the other processes when a plan first needs them."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._store: JaxStore | None = None
        self._lock = threading.Lock()

    def asks_peers(self, request: _native.PlanRequest) -> bool:
        """Whether planning waits for other processes to reach the same call."""
        return jax.process_count() > 1 and (known_devices(request, json.loads(request.spec), request.arrived()) is None)

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
        nodes = tuple(range(len(places))) if apart else common.normalise([p.process for p in places])
        if ragged:
            # Sizes are known only when it runs: `block` counts the whole operand.
            nbytes = spec["block"] * element
        pick = functools.partial(
            tuner.choose,
            collective,
            nodes,
            hosts,
            nbytes,
            spec["dtype"],
            ll_bytes=_native.ll_payload_bytes(),
            channels=(settings().min_nchannels, settings().max_nchannels),
            # Nobody could gather messages whose sizes only their senders know.
            unwanted=("pxn",) if settings().pxn_disable or ragged else (),
        )
        choice = _users_choice(collective, nodes, spec) or tuner.choose_among(
            pick,
            () if ragged else settings().algo,
            settings().proto,
            spec["algorithm"],
            spec["protocol"] or ("simple" if ragged and len(set(nodes)) > 1 else None),
        )
        channels = 1 if ragged or apart else choice.channels
        schedule = common.schedule(
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
        what = common.describe(spec)
        key, check = _key(request, spec, places), common.number(f"{spec['dtype']}{spec['shape']}", 4)
        plan.set_identity(what, key, check, _HALVES[half], spec["timeout"], process)
        op = spec["op"]
        divisor = len(places) if op == "mean" else 0
        block = 0 if ragged else spec["block"]
        plan.set_data(dtypes.dtype_code(spec["dtype"]), -1 if op is None else dtypes.REDUCE_OPS[op], divisor, block)
        plan.set_shape(
            schedule.in_blocks, schedule.out_blocks, schedule.pieces, schedule.scratch_chunks, schedule.nlanes
        )
        widest = element if op is None else max(element, dtypes.accumulator_bytes(spec["dtype"]))
        tile = _tile_elements(choice.protocol, element, widest * schedule.group)
        plan.set_protocol(_PROTOCOLS[choice.protocol], tile, links)
        for rank, place in enumerate(places):
            host = world.info(place.process).hostname if world is not None else "this host"
            plan.add_rank(place.process, place.device, f"rank {rank} (process {place.process} on {host})")
        for rank in local:
            steps, lane_begin, peers = common.table(schedule, rank)
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
        devices = known_devices(request, spec, request.arrived())
        if devices is None:
            devices = exchange_devices(self._get_store(), request, spec, request.arrived)
        owner = device_owners("cpu")
        return [Place(owner[d], d) for d in devices]

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
        return common.normalise([world.info(p.process).host_id for p in places])

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


def _tile_elements(protocol: str, element: int, widest: int) -> int:
    if protocol == "memory":
        return max(1, _MEMORY_TILE_BYTES // element)
    payload = _native.ll_payload_bytes() if protocol == "ll" else settings().slot_bytes
    return max(1, payload // widest)


def _key(request: _native.PlanRequest, spec: dict[str, Any], places: list[Place]) -> int:
    """The same number in all processes of the group for one call site, and for both halves of a message queue."""
    devices = [place.device for place in places]
    if spec["half"] == "both":
        identity = f"{request.spec}/{request.ordinal}/{devices}"
    else:
        identity = f"p2p/{spec['tag']}/{spec['perm']}/{devices}"
    return common.number(identity, 8)
