"""Finds or makes the communicator of a plan's ranks: joins their processes and computes their memory domains."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, NamedTuple

import jax

from jaxring.errors import JoinError, SettingsError
from jaxring.plan.gpu.lanes import one_shot_bytes
from jaxring.runtime import job, machines, schedules
from jaxring.runtime.call import CallSpec
from jaxring.runtime.cuda import messages as cuda_messages
from jaxring.runtime.cuda.gpu_info import GpuInfo, domains_of, shared_gpus, why_apart
from jaxring.runtime.cuda.near_nics import NearNics
from jaxring.runtime.cuda.rank_group import Group, GroupRank, Shape, wires
from jaxring.runtime.reporting.communicator_log import CommunicatorLog
from jaxring.settings import settings
from jaxring.topology import detect
from jaxring.world import identity
from jaxring.world.job_world import World
from jaxring.world.store import JaxStore
from jaxring.world.transports.shm import memory_path

logger = logging.getLogger("jaxring.runtime")

_SLOTS = 8


class Devices(NamedTuple):
    """How device numbers translate. ``global_ids``: XLA's number in a handler -> jax device id; ``gpus``: jax device
    id -> the CUDA runtime's number, of this process's devices."""

    platform: str
    global_ids: dict[int, int]
    gpus: dict[int, int]


class Communicators:
    """The communicators of this process, each made when a plan first needs it. ``native`` is the engine's module."""

    def __init__(self, native: Any, devices: Devices) -> None:
        self._native, self._devices = native, devices
        self._lock = threading.Lock()
        self._groups: dict[str, Group] = {}
        self._infos: dict[int, GpuInfo] = {}
        self._attached: set[int] = set()
        self._said_apart = False
        self._log = CommunicatorLog()
        self.store: JaxStore | None = None
        configured = settings()
        self.lanes = configured.channels[1]
        # No more than a slot of BUFFSIZE, which is what the network carries in one message.
        self._wires = wires(_SLOTS, configured.slot_bytes)
        self._process = jax.process_index()
        self._infos[self._process] = self._own_info()
        machine = detect.machine(configured)
        self._near = NearNics(native, set(devices.gpus.values()), configured.net_gdr_level, machine)
        if jax.process_count() > 1:
            self.store = job.own().store()
            # Before the information about its GPUs, so that who has read that one need not wait for this.
            machines.publish(self.store, self._process, identity.host_id(configured.hostid), machine)
            self.store.set(f"jaxring/cuda/gpu_info/{self._process}", self._infos[self._process].to_json())

    def gpu_info(self, process: int) -> GpuInfo:
        """Waits for what a process published about its GPUs. Raises JoinError."""
        info = self._infos.get(process)
        if info is None and self.store is not None:
            raw = self.store.get(f"jaxring/cuda/gpu_info/{process}", settings().come_timeout)
            info = self._infos[process] = GpuInfo.from_json(raw)
        if info is None:
            raise JoinError(f"there is no process {process}")
        return info

    def get(
        self,
        devices: list[int],
        owners: list[int],
        spec: CallSpec,
        purpose: str = "",
        shape: Shape | None = None,
    ) -> Group:
        """The communicator of these ranks for ``purpose``; each purpose has a communicator with its own memory."""
        # The lines of the one-shot all-reduce are twice as long as their data.
        shape = shape or Shape(self.lanes, self._wires, 2 * one_shot_bytes(len(devices)))
        others = sorted(set(owners) - {self._process})
        world = job.own().join(job.own().membership()) if others else None
        infos = {process: self.gpu_info(process) for process in set(owners)}
        hosts: list[Any] = [world.info(p).host_id if world is not None else 0 for p in owners]
        if "none" in settings().p2p:
            hosts = list(range(len(owners)))
        if world is not None and self.store is not None:
            here = world.info(self._process).host_id
            mates = {process for process in {*owners, self._process} if world.info(process).host_id == here}
            self._near.meet(self.store, mates, here, settings().join_timeout)
        domains = domains_of(devices, owners, infos, hosts)
        why = why_apart(devices, owners, infos, hosts)
        if why and not self._said_apart:
            self._said_apart = True
            logger.warning("%s", why)
        shared = shared_gpus(devices, owners, infos)
        if shared and "shared" not in settings().p2p:
            raise SettingsError(
                f"{shared}. They would divide its thread blocks among them, and without MPS the driver runs one "
                "process at a time. Give each rank a GPU of its own: CUDA_VISIBLE_DEVICES, or local_device_ids of "
                "jax.distributed.initialize. If they are meant to share, set JAXRING_P2P=shared for all processes."
            )
        name = f"{schedules.number(f'{devices}{domains}{shape}{purpose}', 8):016x}"
        with self._lock:
            if name not in self._groups:
                self._groups[name] = self._make(name, shape, devices, owners, domains, world, spec)
            return self._groups[name]

    @property
    def world(self) -> World | None:
        """The other processes of the job, where it has any that this one has joined."""
        return job.own().world()

    def queue(self, devices: list[int], owners: list[int], spec: CallSpec, lanes: int) -> tuple[Group, Group]:
        """The communicators of a message's shape and of its queue, connected. All ranks call this for either half."""
        queue, of_shape = cuda_messages.names(spec, devices)
        shape = cuda_messages.queue_shape(cuda_messages.nbytes(spec), lanes, settings().slot_bytes)
        header_ring = self.get(devices, owners, spec, queue, cuda_messages.header_ring_shape())
        data = self.get(devices, owners, spec, of_shape, shape)
        for group in (header_ring, data):
            cuda_messages.connect(group, spec.perm)
        return data, header_ring

    def _own_info(self) -> GpuInfo:
        native, count = self._native, self._native.device_count()
        uuid = {n: native.device(n).uuid for n in range(count)}
        directory, doorbell = native.region_directory()
        return GpuInfo(
            os.getpid(),
            directory,
            doorbell,
            {device: uuid[gpu] for device, gpu in self._devices.gpus.items()},
            {uuid[a]: tuple(uuid[b] for b in range(count) if native.can_access(a, b)) for a in range(count)},
            min(native.device(n).multiprocessors for n in self._devices.gpus.values()),
            tuple(uuid[n] for n in range(count) if native.has_multicast(n)),
            {uuid[a]: tuple(uuid[b] for b in range(count) if native.stores_whole_lines(a, b)) for a in range(count)},
        )

    def _make(
        self,
        name: str,
        shape: Shape,
        devices: list[int],
        owners: list[int],
        domains: list[int],
        world: World | None,
        spec: CallSpec,
    ) -> Group:
        ranks = []
        for rank, (device, process, domain) in enumerate(zip(devices, owners, domains, strict=True)):
            gpu = self._devices.gpus[device] if process == self._process else -1
            host = world.info(process).hostname if world is not None else "this host"
            name_of = f"rank {rank} (process {process} on {host}, device {device})"
            ranks.append(GroupRank(process, gpu, domain, name_of))
        here = {domain for domain, process in zip(domains, owners, strict=True) if process == self._process}
        near = {owner for domain, owner in zip(domains, owners, strict=True) if domain in here}
        others = sorted(set(owners) - {self._process})
        if world is not None:
            for process in others:
                world.expect(process, 1)
        for process in others:
            if world is None:
                raise JoinError("there is no other process")
            world.link(process, 0)
            if process in near and process not in self._attached:
                info, peer = self.gpu_info(process), world.info(process)
                directory = memory_path(peer, info.pid, info.directory_fd)
                doorbell = memory_path(peer, info.pid, info.doorbell_fd)
                self._native.attach_region_directory(process, directory, doorbell)
                self._attached.add(process)
        store = self.store if world is not None else None
        timeout = min(settings().join_timeout, spec.timeout)
        group = Group(self._native, name, ranks, shape, store, timeout)
        hosts = 1 if world is None else len({world.info(process).host_id for process in owners})
        transport_of = (
            None if world is None else lambda process: "memory" if process in near else world.transport(process)
        )
        self._log.say("GPU", name, devices, owners, self._process, hosts, transport_of)
        return group
