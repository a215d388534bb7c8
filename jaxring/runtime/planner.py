"""Makes the plan for a call site: the ranks' placement, their links, the schedule, and how it is cut into tiles."""

from __future__ import annotations

import collections
import dataclasses
import logging
from typing import TYPE_CHECKING

import jax

import jaxring._native as _native
from jaxring.errors import JoinError
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.schedule import Schedule
from jaxring.runtime import call_topology, programs, ranking, schedules, survivors
from jaxring.runtime.agreement import Use
from jaxring.runtime.call import CallSpec
from jaxring.runtime.choice import choose
from jaxring.runtime.explain import Decision, record
from jaxring.runtime.placement import RankPlace, device_owners, exchange_devices, known_devices
from jaxring.runtime.plan_spec import PlanSpec
from jaxring.runtime.reporting.communicator_log import CommunicatorLog
from jaxring.settings import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.runtime.job import Job
    from jaxring.world.job_world import World
    from jaxring.world.membership import Membership

logger = logging.getLogger("jaxring.runtime")

_HALVES = {"both": 0, "send": 1, "recv": 2}


class Planner:
    """Answers planning requests. It has `job` join the other processes when a plan first needs them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._exchanged: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        # The call sites that asked for the devices of one call in an epoch, in the order in which they asked. They are
        # not counted per group, because a process has ranks of different groups at different sites.
        self._askers: dict[tuple[int, str, int], list[int]] = collections.defaultdict(list)
        self._log = CommunicatorLog()
        # By epoch: processes on this one's processors that count as other hosts, as those of other containers do.
        self._in_other_hosts: dict[int, set[int]] = collections.defaultdict(set)

    def forget(self) -> None:
        """Another job begins, whose epochs and devices are counted anew."""
        self._exchanged.clear()
        self._askers.clear()
        self._log.forget()
        self._in_other_hosts.clear()

    def asks_peers(self, request: _native.PlanRequest) -> bool:
        """Whether planning waits for other processes to reach the same call."""
        spec = CallSpec.from_json(request.spec)
        return jax.process_count() > 1 and known_devices(request, spec, request.arrived()) is None

    def plan(self, request: _native.PlanRequest) -> _native.PlanBuilder:
        """A native plan for the request. Raises JoinError, PlanError, or ValueError for what cannot be done."""
        spec = CallSpec.from_json(request.spec)
        if request.shown:
            spec = dataclasses.replace(spec, site=request.shown)
        process = jax.process_index()
        membership = self._job.membership()
        placement = self._placement(request, spec, process, membership)
        ranks = survivors.present(spec, placement, membership)
        placement = [placement[rank] for rank in ranks]
        root = ranks.index(spec.root) if spec.root in ranks else 0
        world = self._job.join(membership) if any(p.process != process for p in placement) else None
        collective = spec.facts.schedules_of
        processes = [place.process for place in placement]
        topology = call_topology.of_ranks(processes, world)
        hosts = topology.hosts
        if world is not None:
            near = self._in_other_hosts[membership.epoch]
            near |= call_topology.in_other_hosts(processes, world)
            _native.set_in_other_hosts(len(near))
        nbytes = spec.operand_bytes(len(placement))
        ragged, half = spec.facts.ragged, spec.half
        # Halves of a point-to-point message run apart from each other, so they cannot read each other's memory.
        apart = half != "both"
        domains = schedules.domains(processes, spec.by_messages)
        choice = choose(spec, domains, root=root, **topology._asdict())
        known = ALGORITHMS.get(choice.algorithm)
        order = ranking.order(domains, placement, world) if known and known.ordered else ranking.PLAIN
        plan_spec = PlanSpec(
            collective=collective,
            half=half,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            domains=domains,
            root=root,
            perm=spec.perm,
            dtype=spec.dtype,
            op=spec.op,
            block=0 if ragged else spec.block,
            order=order.domains,
            epilogue=spec.epilogue,
            codes=spec.codes,
        )
        schedule = plan_spec.schedule()
        local = [rank for rank, place in enumerate(placement) if place.process == process]
        key = _key(request, spec, placement, membership.epoch, _start(placement, world))
        request.identify(key, _HALVES[half], process)
        try:
            most = max(topology.interfaces, settings().nsocks)
            links, transports, linked = self._connect(schedule, placement, local, world, most)
        except JoinError as error:
            self._job.agreement().failed(key, f"{spec.describe()}: {error}")
            raise
        self._job.agreement().planned(key)
        transport_of = None if world is None else world.transport
        owners, devices = [place.process for place in placement], [place.device for place in placement]
        self._log.say("CPU", (membership.epoch, *devices), devices, owners, process, len(set(hosts)), transport_of)

        plan = _native.PlanBuilder()
        what = spec.describe()
        check = schedules.number(spec.message, 4)
        plan.set_identity(what, key, check, _HALVES[half], spec.timeout, process, membership.epoch)
        plan_spec.shape(plan, links, across=len(set(hosts)) > 1 or settings().shm_disable)
        names: dict[int, str] = {}
        everybody: list[str] = []
        for rank, place in enumerate(placement):
            host = world.info(place.process).hostname if world is not None else "this host"
            name = f"rank {ranks[rank]} (process {place.process} on {host})"
            names.setdefault(place.process, name)
            everybody.append(name)
            plan.add_rank(place.process, place.device, name)
        plan_spec.add_tables(plan, ((rank, ranks[rank]) for rank in local))
        if settings().save_operands and spec.epilogue is None and spec.codes is None:  # their operands are not saved
            plan.set_spec(plan_spec.to_json(everybody))
        if linked and not apart:
            use = Use(key, what, programs.of_call(request.spec), names)
            self._job.agreement().begin(use, linked, plan.set_latch if spec.facts.needs_all else None)
        decision = Decision(
            collective=spec.collective,
            op=spec.op,
            dtype=spec.dtype,
            nbytes=nbytes,
            axes=spec.axes,
            site=spec.site,
            ranks=len(placement),
            processes=len({p.process for p in placement}),
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            transports=transports,
            reason=choice.reason,
            candidates=tuple(choice.candidates),
            prediction=choice.prediction,
            order=order.text,
            epilogue=spec.epilogue.text if spec.epilogue else "",
            compress=spec.codes.form if spec.codes else "",
        )
        plan.set_label(decision.label())
        record(decision)
        logger.info("%s", decision)
        return plan

    def _placement(
        self, request: _native.PlanRequest, spec: CallSpec, process: int, membership: Membership
    ) -> list[RankPlace]:
        """Process and device of each rank, in rank order, lost ones included."""
        partitions = request.partitions
        if membership.count == 1:
            # Here device ids only tell ranks apart. An abstract mesh does not know them; partition ids serve as well.
            return [RankPlace(process, int(p)) for p in partitions]
        devices = known_devices(request, spec, request.arrived())
        owner = device_owners("cpu")
        if devices is None:
            call = (request.spec, tuple(partitions))
            earlier = enumerate(self._exchanged.get(call, ()))
            lost = {rank: device for rank, device in earlier if owner[device] in membership.lost}
            store, epoch = self._job.store(), membership.epoch
            askers = self._askers[(epoch, request.spec, request.ordinal)]
            if request.site not in askers:
                askers.append(request.site)
            before = askers.index(request.site)
            devices = exchange_devices(store, request, spec, request.arrived, epoch, lost, self._job.waits, before)
            self._exchanged[call] = devices
        return [RankPlace(owner[d], d) for d in devices]

    @staticmethod
    def _connect(
        schedule: Schedule, placement: list[RankPlace], local: list[int], world: World | None, most: int
    ) -> tuple[int, tuple[str, ...], set[int]]:
        """Links to every process that this one sends to, at most ``most`` to each.

        Returns the number of channels, the transports in use, and the processes that there are links with or will be.
        """
        channels = max(1, min(schedule.nlanes, most))
        transports: set[str] = set()
        linked: set[int] = set()
        sources = {placement[peer].process for rank in local for peer in schedule.message_peers(rank)[1]}
        if world is not None:
            # Before this process waits for anybody: they may wait for it.
            for process in sources - {placement[rank].process for rank in local}:
                world.expect(process, channels)
        for rank in local:
            sends, receives = schedule.message_peers(rank)
            if schedule.uses_memory(rank) or len(placement) == 1:
                transports.add("memory")
            for peer in sends | receives:
                target = placement[peer].process
                if target == placement[rank].process:
                    transports.add("local")
                elif world is not None:
                    transports.add(world.transport(target))
                    linked.add(target)
                    if peer in sends:
                        for channel in range(channels):
                            world.link(target, channel)
        return channels, tuple(sorted(transports)) or ("none",), linked


def _start(placement: Sequence[RankPlace], world: World | None) -> str:
    """Random text that names this start of the group's first process in the job, the same in all processes of it.

    "" for a group within one process, which no other one takes part in.
    """
    return "" if world is None else world.info(placement[0].process).token


def _key(request: _native.PlanRequest, spec: CallSpec, placement: list[RankPlace], epoch: int, start: str) -> int:
    """The same number in all processes of the group for one call site, and for both halves of a message queue.

    ``start`` keeps the keys apart of a job and of one that replaces it (`rebuild(size=...)`), whose epochs begin at 0
    again: a flight record has the operations of both.
    """
    devices = [place.device for place in placement]
    if spec.half == "both":
        identity = f"{request.spec}/{request.ordinal}/{devices}"
    else:
        identity = f"p2p/{spec.tag}/{spec.perm}/{devices}"
    return schedules.number(f"{start}/{epoch}/{identity}", 8)
