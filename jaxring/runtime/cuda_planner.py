"""Makes plans for call sites on GPUs: which ranks share memory, their communicator, the schedule and its kernel."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import threading
import time
from typing import Any, NamedTuple

import jax

from jaxring import _compat
from jaxring.checks import SCHEDULED_AS
from jaxring.errors import JoinError
from jaxring.plan import copies, cuda_tuner, dtypes, nvls, tuner
from jaxring.plan.schedule import COLLECTIVES, Spec
from jaxring.runtime import common, cuda_builder, cuda_copies, cuda_messages, cuda_nvls
from jaxring.runtime.cuda_cards import Card, nodes_of, uuid_of
from jaxring.runtime.cuda_groups import Group, Shape
from jaxring.runtime.explain import Decision, record
from jaxring.runtime.places import device_owners, exchange_devices, known_devices
from jaxring.settings import settings
from jaxring.topology import detect, paths
from jaxring.world.join import World
from jaxring.world.links import memory_path
from jaxring.world.store import JaxStore

logger = logging.getLogger("jaxring.runtime")

# Sets its processes' links apart from those of the CPU engine, which have a World of their own.
_GENERATION = 1_000_000
_SLOTS = 8
# Of simple, ll and ll128, and no more than a slot of BUFFSIZE, which is what the network carries in one message.
_SLOT_BYTES = (1 << 26, 16 * 1024, 32 * 1024)


class Devices(NamedTuple):
    """How device numbers translate. ``global_ids``: XLA's number in a handler -> jax device id; ``gpus``: jax device
    id -> the CUDA runtime's number, of this process's devices."""

    platform: str
    global_ids: dict[int, int]
    gpus: dict[int, int]


class CudaPlanner:
    """Answers the CUDA engine's planning requests. ``native`` is its module."""

    def __init__(self, native: Any, devices: Devices, threads: int) -> None:
        self._native, self._devices, self._threads = native, devices, threads
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}
        self._cards: dict[int, Card] = {}
        self._attached: set[int] = set()
        self._world: World | None = None
        self._store: JaxStore | None = None
        configured = settings()
        self._shape = Shape(
            configured.max_nchannels,
            tuple((_SLOTS, min(size, configured.slot_bytes)) for size in _SLOT_BYTES),
            2 * cuda_builder.ONE_SHOT_BYTES,
        )
        self._process, self._processes = jax.process_index(), jax.process_count()
        self._cards[self._process] = self._own_card()
        machine = detect.machine(configured)
        for gpu in sorted(set(devices.gpus.values())):
            near = paths.nics_near(machine, native.device(gpu)[4], configured.net_gdr_level)
            native.allow_direct(gpu, near)
        if self._processes > 1:
            self._store = JaxStore()
            self._store.set(f"jaxring/cuda/card/{self._process}", self._cards[self._process].to_json())

    def identify(self, request: Any) -> None:
        """The partition of a device that is captured into a graph before its partition id can be read."""
        spec = json.loads(request.spec)
        device = self._devices.global_ids.get(request.device)
        if spec["devices"] is None or device not in spec["devices"]:
            raise ValueError(
                f"{common.describe(spec)} was captured into a CUDA graph on its first run, and its mesh does not name "
                "the devices: call it once with XLA_FLAGS=--xla_gpu_enable_command_buffer= or use a concrete mesh"
            )
        request.identify(spec["devices"].index(device))

    def plan(self, request: Any) -> tuple[Any, Any]:
        """The communicator and native plan for a request. Raises JoinError, PlanError or ValueError."""
        spec = json.loads(request.spec)
        devices = self._ranks(request, spec)
        owner = device_owners(self._devices.platform)
        owners = [owner[d] for d in devices]
        # Launches on a communicator have one order on each device: what is started has communicators of its own.
        group = self._group(devices, owners, spec, "beside" if spec.get("started") else "")
        collective = SCHEDULED_AS.get(spec["collective"], spec["collective"])
        half, ragged = spec["half"], spec["collective"] == "ragged_all_to_all"
        blocks = 1 if ragged else COLLECTIVES[collective][0] or len(devices)
        nbytes = spec["block"] * dtypes.element_bytes(spec["dtype"]) * blocks
        nodes, most = common.normalise(group.nodes), self._most_lanes(devices, owners)
        transports = self._transports(nodes, owners)
        if ragged or half != "both":
            # No rank knows where the other one's data lies, so nobody addresses another's memory.
            nodes = tuple(range(len(devices)))
            choice = cuda_tuner.by_messages(nbytes, most, f"{spec['collective']} goes by messages")
        else:
            cards = [self._card(process) for process in owners]
            places = {uuid_of(d, card) for d, card in zip(devices, cards, strict=True)}
            pick = functools.partial(
                cuda_tuner.choose,
                collective,
                nodes,
                nbytes,
                spec["dtype"],
                most,
                whole_lines=len(places) == 1,
                copies_from=cuda_tuner.COPY_BYTES if len(places) == len(devices) else None,
                fewest_lanes=settings().min_nchannels,
                no_nvls=cuda_nvls.why_not(self._native, collective, spec["op"], spec["dtype"], nodes, devices, cards),
                take_nvls=settings().nvls_enable == nvls.CHOSEN,
                nvls_widening=cuda_nvls.widening(self._native, spec["op"], spec["dtype"]),
            )
            asked = (spec["algorithm"], spec["protocol"])
            choice = tuner.choose_among(pick, settings().algo, settings().proto, *asked)
        schedule = common.schedule(
            half,
            Spec(
                collective,
                len(devices),
                "direct" if choice.algorithm in (copies.NAME, nvls.NAME) else choice.algorithm,
                root=spec["root"],
                channels=choice.channels,
                placement=nodes,
                perm=tuple((s, t) for s, t in spec["perm"]),
            ),
        )
        with group.lock:
            group.prepare()
            if choice.algorithm == copies.NAME:
                group.land(cuda_copies.LANDING_BYTES)
            if choice.algorithm == nvls.NAME:
                group.multicast(cuda_nvls.MEMORY_BYTES)
                transports = (nvls.NAME,)
            if half == "both":
                peers = {rank: set().union(*schedule.message_peers(rank)) for rank in group.local}
                group.connect(peers, choice.protocol)
        desk = None
        if half != "both":
            group, desk = self._queue(devices, owners, spec, choice.channels)
        plan = cuda_builder.build(self._native, spec, schedule, choice, group.local, nbytes, self._threads)
        if ragged:
            plan.set_ragged(math.prod(spec["shape"][1:]))
        if desk is not None:
            plan.set_mail(desk.communicator, half == "send", cuda_messages.check(spec))
        decision = Decision(
            collective=spec["collective"],
            op=spec["op"],
            dtype=spec["dtype"],
            nbytes=nbytes,
            axes=spec["axes"],
            site=spec["site"],
            ranks=len(devices),
            processes=len(set(owners)),
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            transports=transports,
            reason=choice.reason,
            candidates=tuple(choice.candidates),
        )
        record(decision)
        logger.info("%s", decision)
        return group.communicator, plan

    def _queue(self, devices: list[int], owners: list[int], spec: dict[str, Any], lanes: int) -> tuple[Group, Group]:
        """The communicators of a message's shape and of its queue, connected. All ranks come here for either half."""
        queue, of_shape = cuda_messages.names(spec, devices)
        shape = cuda_messages.queue_shape(cuda_messages.nbytes(spec), lanes, settings().slot_bytes)
        desk = self._group(devices, owners, spec, queue, cuda_messages.desk_shape())
        data = self._group(devices, owners, spec, of_shape, shape)
        for group in (desk, data):
            cuda_messages.connect(group, spec["perm"])
        return data, desk

    def _ranks(self, request: Any, spec: dict[str, Any]) -> list[int]:
        """The device id of each rank, in rank order."""

        def arrived() -> list[tuple[int, int]]:
            return [(rank, self._devices.global_ids[device]) for rank, device in request.arrived()]

        devices = known_devices(request, spec, arrived())
        if devices is not None:
            return devices
        if self._store is not None:
            return exchange_devices(self._store, request, spec, arrived)
        deadline = time.monotonic() + spec["timeout"]
        while len(found := dict(arrived())) < len(request.partitions):
            if time.monotonic() > deadline:
                raise JoinError(f"only ranks {sorted(found)} reached {common.describe(spec)} in {spec['timeout']:g} s")
            time.sleep(0.001)
        return [found[rank] for rank in range(len(request.partitions))]

    def _most_lanes(self, devices: list[int], owners: list[int]) -> int:
        """So many that all lanes of the ranks that share a GPU are resident together, on XLA's streams and beside."""
        uuids = [uuid_of(d, self._card(p)) for d, p in zip(devices, owners, strict=True)]
        sharing = max(uuids.count(u) for u in uuids)
        smallest = min(self._card(p).multiprocessors for p in set(owners))
        return max(1, min(self._shape.lanes, smallest // (2 * sharing)))

    def _transports(self, nodes: tuple[int, ...], owners: list[int]) -> tuple[str, ...]:
        ways = {
            "p2p" if owners[a] == owners[b] else "ipc"
            for a in range(len(nodes))
            for b in range(a)
            if nodes[a] == nodes[b]
        }
        if len(set(nodes)) > 1:
            ways.add("network")
        return tuple(sorted(ways)) or ("none",)

    def _own_card(self) -> Card:
        native, count = self._native, self._native.device_count()
        uuid = {n: native.device(n)[1] for n in range(count)}
        board, bell = native.board()
        return Card(
            os.getpid(),
            board,
            bell,
            {device: uuid[gpu] for device, gpu in self._devices.gpus.items()},
            {uuid[a]: tuple(uuid[b] for b in range(count) if native.can_access(a, b)) for a in range(count)},
            min(native.device(n)[3] for n in self._devices.gpus.values()),
            tuple(uuid[n] for n in range(count) if native.has_multicast(n)),
        )

    def _card(self, process: int) -> Card:
        card = self._cards.get(process)
        if card is None and self._store is not None:
            raw = self._store.get(f"jaxring/cuda/card/{process}", settings().join_timeout)
            card = self._cards[process] = Card.from_json(raw)
        if card is None:
            raise JoinError(f"there is no process {process}")
        return card

    def _group(
        self,
        devices: list[int],
        owners: list[int],
        spec: dict[str, Any],
        purpose: str = "",
        shape: Shape | None = None,
    ) -> Group:
        """The communicator of these ranks; those for other purposes are its like with memory of their own."""
        shape = shape or self._shape
        others = sorted(set(owners) - {self._process})
        world = self._join() if others else None
        cards = {process: self._card(process) for process in set(owners)}
        hosts: list[Any] = [world.info(p).host_id if world is not None else 0 for p in owners]
        if settings().p2p_disable:
            hosts = list(range(len(owners)))
        nodes = nodes_of(devices, owners, cards, hosts)
        name = f"{common.number(f'{devices}{nodes}{shape}{purpose}', 8):016x}"
        with self._lock:
            if name not in self._groups:
                self._groups[name] = self._make(name, shape, devices, owners, nodes, world, spec)
            return self._groups[name]

    def _make(
        self,
        name: str,
        shape: Shape,
        devices: list[int],
        owners: list[int],
        nodes: list[int],
        world: World | None,
        spec: dict[str, Any],
    ) -> Group:
        ranks = []
        for rank, (device, process, node) in enumerate(zip(devices, owners, nodes, strict=True)):
            gpu = self._devices.gpus[device] if process == self._process else -1
            host = world.info(process).hostname if world is not None else "this host"
            ranks.append((process, gpu, node, f"rank {rank} (process {process} on {host}, device {device})"))
        here = {node for node, process in zip(nodes, owners, strict=True) if process == self._process}
        others = sorted(set(owners) - {self._process})
        if world is not None:
            for process in others:
                world.expect(process, 1)
        for process in others:
            if world is None:
                raise JoinError("there is no other process")
            world.link(process, 0)
            near = any(node in here for node, owner in zip(nodes, owners, strict=True) if owner == process)
            if near and process not in self._attached:
                card, info = self._card(process), world.info(process)
                board = memory_path(info, card.pid, card.board_fd)
                self._native.attach_board(process, board, memory_path(info, card.pid, card.bell_fd))
                self._attached.add(process)
        store = self._store if world is not None else None
        timeout = min(settings().join_timeout, spec["timeout"])
        return Group(self._native, name, ranks, shape, store, timeout)

    def _join(self) -> World:
        with self._lock:
            if self._world is None:
                state = _compat.distributed_state()
                self._world = World(
                    self._store or JaxStore(),
                    self._process,
                    self._processes,
                    self._native,
                    settings().join_timeout,
                    coordinator=state.coordinator if state is not None else "",
                    generation=_GENERATION,
                    gpus=[self._native.device(n)[4] for n in self._devices.gpus.values()],
                )
            return self._world
