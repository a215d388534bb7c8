"""Makes plans for call sites on GPUs: the ranks' placement, the schedule, and the kernel or copies that run it."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import time
from typing import Any

from jaxring.errors import JoinError
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.choice import choose_among
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.gpu import tuner as cuda_tuner
from jaxring.plan.schedule import Results, Spec
from jaxring.runtime import ranking, schedules
from jaxring.runtime.call import CallSpec
from jaxring.runtime.cuda import (
    builder as cuda_builder,
)
from jaxring.runtime.cuda import (
    copy_engine as cuda_copy_engine,
)
from jaxring.runtime.cuda import (
    messages as cuda_messages,
)
from jaxring.runtime.cuda import (
    nvls as cuda_nvls,
)
from jaxring.runtime.cuda.communicators import Communicators, Devices
from jaxring.runtime.cuda.gpu_info import shared_gpus, stores_whole_lines, uuid_of
from jaxring.runtime.explain import Decision, record
from jaxring.runtime.placement import RankPlace, device_owners, exchange_devices, known_devices
from jaxring.settings import settings

logger = logging.getLogger("jaxring.runtime")


class CudaPlanner:
    """Answers the CUDA engine's planning requests. ``native`` is its module."""

    def __init__(self, native: Any, devices: Devices, threads: int) -> None:
        self._native, self._devices, self._threads = native, devices, threads
        self._communicators = Communicators(native, devices)
        # By communicator, call and partitions. Programs that are traced again make the same calls, and native plans
        # live until the process ends, since only XLA knows until when its graphs use them.
        self._plans: dict[tuple[Any, str, tuple[int, ...]], Any] = {}

    def identify(self, request: Any) -> None:
        """The partition of a device that is captured into a graph before its partition id can be read."""
        spec = CallSpec.from_json(request.spec)
        device = self._devices.global_ids.get(request.device)
        if spec.devices is None or device not in spec.devices:
            raise ValueError(
                f"{spec.describe()} was captured into a CUDA graph on its first run, and its mesh does not name the "
                "devices, as if another version of jaxring had lowered it: lower it again"
            )
        request.identify(spec.devices.index(device))

    def plan(self, request: Any) -> tuple[Any, Any]:
        """The communicator and native plan for a request. Raises JoinError, PlanError or ValueError."""
        spec = CallSpec.from_json(request.spec)
        devices = self._ranks(request, spec)
        owner = device_owners(self._devices.platform)
        owners = [owner[d] for d in devices]
        # Launches on a communicator have one order on each device, so started collectives have their own communicators.
        group = self._communicators.get(devices, owners, spec, "side stream" if spec.started else "")
        collective = spec.facts.schedules_of
        half, ragged = spec.half, spec.facts.ragged
        nbytes = spec.operand_bytes(len(devices))
        domains, most = schedules.normalise(group.domains), self._most_lanes(devices, owners)
        transports = self._transports(domains, owners)
        if ragged or half != "both":
            # No rank knows where the other one's data is, so none addresses another's memory.
            domains = tuple(range(len(devices)))
            choice = cuda_tuner.by_messages(nbytes, most, f"{spec.collective} goes by messages")
        else:
            infos = [self._communicators.gpu_info(process) for process in owners]
            pick = functools.partial(
                cuda_tuner.choose,
                collective,
                domains,
                nbytes,
                spec.dtype,
                most,
                whole_lines=stores_whole_lines(devices, infos),
                fewest_lanes=settings().channels[0],
                no_nvls=cuda_nvls.why_not(self._native, collective, spec.op, spec.dtype, domains, devices, infos),
                nvls_widening=cuda_nvls.widening(self._native, spec.op, spec.dtype),
                epilogue=spec.epilogue,
            )
            asked = (spec.algorithm, spec.protocol)
            choice = choose_among(pick, settings().algo, settings().proto, *asked)
        known = ALGORITHMS.get(choice.algorithm)
        places = [RankPlace(process, device) for process, device in zip(owners, devices, strict=True)]
        ordered = known is not None and known.ordered
        order = ranking.order(domains, places, self._communicators.world) if ordered else ranking.PLAIN
        schedule = schedules.schedule(
            half,
            Spec(
                collective,
                len(devices),
                "direct" if choice.algorithm in (copy_engine.NAME, nvls.NAME) else choice.algorithm,
                root=spec.root,
                channels=choice.channels,
                placement=domains,
                perm=spec.perm,
                order=order.domains,
            ),
            Results.VALUES if spec.epilogue is None else spec.epilogue.results,
        )
        # Through memory of the communicator's own.
        moved = choice.algorithm in (copy_engine.NAME, nvls.NAME) or choice.one_shot
        shares = (
            (bool(group.near) or group.several)
            and not moved
            and any(schedule.uses_memory(rank) for rank in group.local)
        )
        with group.lock:
            group.prepare()
            if choice.algorithm == copy_engine.NAME:
                group.offer_staging(cuda_copy_engine.STAGING_BYTES)
            if choice.algorithm == nvls.NAME:
                group.multicast(cuda_nvls.MEMORY_BYTES)
                transports = (nvls.NAME,)
            if half == "both":
                peers = {rank: set().union(*schedule.message_peers(rank)) for rank in group.local}
                group.connect(peers, choice.protocol)
            lacks = ""
            if shares and group.near:
                lacks = group.offer_replacements(nbytes, spec.result_bytes(schedule.out_blocks))
        header_ring = None
        if half != "both":
            group, header_ring = self._communicators.queue(devices, owners, spec, choice.channels)
        shared: dict[int, str] = {}

        def share() -> None:
            if shares and ("staged" not in settings().p2p or not group.near):
                shared.update(request.share_buffers(group.communicator))

        # All ranks call both halves of a message, in any order.
        group.meet("halves" if half != "both" else _identity(request), share)
        if shared and not group.near and any(shared.values()):
            # So it will be with what XLA allocates later.
            with group.lock:
                lacks = group.offer_replacements(nbytes, spec.result_bytes(schedule.out_blocks))
        infos_of = {process: self._communicators.gpu_info(process) for process in owners}
        shares_gpu = shared_gpus(devices, owners, infos_of)
        transports, memory = _paths(transports, shares, shared, lacks)
        key = (group, request.spec, tuple(request.partitions))
        plan = self._plans.get(key)
        if plan is None:
            plan = cuda_builder.build(
                self._native, spec, schedule, choice, group.local, nbytes, self._threads, _call(request, half)
            )
            if ragged:
                plan.set_ragged(math.prod(spec.shape[1:]))
            if header_ring is not None:
                plan.set_point_to_point(header_ring.communicator, half == "send", cuda_messages.check(spec))
            if not lacks:  # there may be memory for replacements next time
                self._plans[key] = plan
        decision = Decision(
            collective=spec.collective,
            op=spec.op,
            dtype=spec.dtype,
            nbytes=nbytes,
            axes=spec.axes,
            site=spec.site,
            ranks=len(devices),
            processes=len(set(owners)),
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            transports=transports,
            reason=choice.reason + (f"; {shares_gpu}" if shares_gpu else "") + memory,
            candidates=tuple(choice.candidates),
            order=order.text,
            epilogue=spec.epilogue.text if spec.epilogue else "",
        )
        record(decision)
        logger.info("%s", decision)
        return group.communicator, plan

    def _ranks(self, request: Any, spec: CallSpec) -> list[int]:
        """The device id of each rank, in rank order."""

        def arrived() -> dict[int, int]:
            return {rank: self._devices.global_ids[device] for rank, device in request.arrived().items()}

        devices = known_devices(request, spec, arrived())
        if devices is not None:
            return devices
        if self._communicators.store is not None:
            return exchange_devices(self._communicators.store, request, spec, arrived)
        deadline = time.monotonic() + spec.timeout
        while len(found := arrived()) < len(request.partitions):
            if time.monotonic() > deadline:
                raise JoinError(f"only ranks {sorted(found)} reached {spec.describe()} in {spec.timeout:g} s")
            time.sleep(0.001)
        return [found[rank] for rank in range(len(request.partitions))]

    def _most_lanes(self, devices: list[int], owners: list[int]) -> int:
        """The most lanes with which all ranks that share a GPU are resident together, on XLA's and on side streams."""
        uuids = [uuid_of(d, self._communicators.gpu_info(p)) for d, p in zip(devices, owners, strict=True)]
        sharing = max(uuids.count(u) for u in uuids)
        smallest = min(self._communicators.gpu_info(p).multiprocessors for p in set(owners))
        return max(1, min(self._communicators.lanes, smallest // (2 * sharing)))

    def _transports(self, domains: tuple[int, ...], owners: list[int]) -> tuple[str, ...]:
        ways = {
            "p2p" if owners[a] == owners[b] else "ipc"
            for a in range(len(domains))
            for b in range(a)
            if domains[a] == domains[b]
        }
        if len(set(domains)) > 1:
            ways.add("network")
        return tuple(sorted(ways)) or ("none",)


def _identity(request: Any) -> str:
    """A name of the request's call site and group, the same in all processes."""
    text = f"{request.spec}/{request.ordinal}/{list(request.partitions)}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _call(request: Any, half: str) -> int:
    """A number of the request's call and group, the same in all processes and after the program is traced again.

    The two halves of a message are calls of their own, which a queue matches by their order.
    """
    if half != "both":
        return 0
    return schedules.number(f"{request.spec}/{list(request.partitions)}", 4)


def _paths(
    transports: tuple[str, ...], shares: bool, shared: dict[int, str], lacks: str
) -> tuple[tuple[str, ...], str]:
    """The transports, and what `explain` says of how ranks reach each other's buffers.

    ``shared``: how the peers have mapped each rank's buffers; empty where JAXRING_P2P=staged says that they shall not.
    ``lacks``: why there is no memory for those that they have not mapped.
    """
    if not shares or (shared and not any(shared.values())):
        return transports, ""
    staged = not shared or any(how.startswith("staged") for how in shared.values())
    if lacks:
        logger.warning("no replacements for buffers that other processes have not mapped: %s", lacks)
    said = sorted(set(shared.values())) or ["staged: JAXRING_P2P=staged asks for it"]
    return (*transports, "staged") if staged else transports, "; buffers " + ", ".join(said)
