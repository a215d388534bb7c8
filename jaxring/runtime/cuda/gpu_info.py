"""What the processes of a job publish about their GPUs, and the memory domains that follow from it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class GpuInfo:
    """What one process publishes: its pid, the descriptors that peers on its host map, and its GPUs.

    ``gpus``: device id -> uuid. ``reaches``: uuid -> the uuids whose memory that GPU can address, itself included, of
    those that the process sees. ``multiprocessors``: of the smallest GPU. ``multicast``: the uuids of those for
    which the driver reports it. ``whole_lines``: uuid -> the uuids in whose memory its 128-byte stores arrive whole.
    """

    pid: int
    directory_fd: int
    doorbell_fd: int
    gpus: Mapping[int, str]
    reaches: Mapping[str, tuple[str, ...]]
    multiprocessors: int
    multicast: tuple[str, ...] = ()
    whole_lines: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> bytes:
        """The JSON that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GpuInfo:
        """Parse what a peer published. Raises ValueError where it is malformed."""
        try:
            raw: Any = json.loads(data)
            return cls(
                pid=int(raw["pid"]),
                directory_fd=int(raw["directory_fd"]),
                doorbell_fd=int(raw["doorbell_fd"]),
                gpus={int(k): str(v) for k, v in raw["gpus"].items()},
                reaches={str(k): tuple(str(u) for u in v) for k, v in raw["reaches"].items()},
                multiprocessors=int(raw["multiprocessors"]),
                multicast=tuple(str(u) for u in raw["multicast"]),
                whole_lines={str(k): tuple(str(u) for u in v) for k, v in raw["whole_lines"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a process's description of its GPUs lacks {error}") from error


def domains_of(
    devices: Sequence[int], owners: Sequence[int], infos: Mapping[int, GpuInfo], hosts: Sequence[Any]
) -> list[int]:
    """The memory domain of each rank, computed from every rank's device id, process and host.

    A rank joins the first domain whose ranks are all on its host and can all address its memory, in both directions.
    Every process computes the same.
    """
    members: list[list[int]] = []
    domains: list[int] = []
    for rank in range(len(devices)):
        for number, others in enumerate(members):
            if all(hosts[o] == hosts[rank] and _mutual(rank, o, devices, owners, infos) for o in others):
                others.append(rank)
                domains.append(number)
                break
        else:
            domains.append(len(members))
            members.append([rank])
    return domains


def why_apart(devices: Sequence[int], owners: Sequence[int], infos: Mapping[int, GpuInfo], hosts: Sequence[Any]) -> str:
    """A sentence where processes of one host do not see each other's GPUs, which keeps their ranks apart; or ""."""
    for rank in range(len(devices)):
        for other in range(len(devices)):
            uuid = uuid_of(devices[other], infos[owners[other]])
            if hosts[rank] == hosts[other] and uuid not in infos[owners[rank]].reaches:
                return (
                    f"process {owners[rank]} does not see the GPU of rank {other} (process {owners[other]}, {uuid}) on "
                    "its host, so their data goes over the network transports instead of the GPUs' memory: make all "
                    "GPUs of a host visible to each of its processes (CUDA_VISIBLE_DEVICES, Slurm's --gpus-per-task) "
                    "and choose by local_device_ids of jax.distributed.initialize"
                )
    return ""


def shared_gpus(devices: Sequence[int], owners: Sequence[int], infos: Mapping[int, GpuInfo]) -> str:
    """Names the ranks that use one GPU, with that GPU, as "ranks 0 and 2 share GPU-..."; "" where each has its own."""
    ranks: dict[str, list[int]] = {}
    for rank, (device, owner) in enumerate(zip(devices, owners, strict=True)):
        ranks.setdefault(uuid_of(device, infos[owner]), []).append(rank)
    shared = [
        f"ranks {', '.join(map(str, each[:-1]))} and {each[-1]} share {uuid}"
        for uuid, each in ranks.items()
        if len(each) > 1
    ]
    return "; ".join(shared)


def _mutual(a: int, b: int, devices: Sequence[int], owners: Sequence[int], infos: Mapping[int, GpuInfo]) -> bool:
    one, other = uuid_of(devices[a], infos[owners[a]]), uuid_of(devices[b], infos[owners[b]])
    return other in infos[owners[a]].reaches.get(one, ()) and one in infos[owners[b]].reaches.get(other, ())


def stores_whole_lines(devices: Sequence[int], infos: Sequence[GpuInfo]) -> bool:
    """Whether 128-byte stores arrive whole between all ranks' GPUs; ``infos`` has an entry for each rank."""
    uuids = [uuid_of(device, info) for device, info in zip(devices, infos, strict=True)]
    return all(
        other == uuid or other in info.whole_lines.get(uuid, ())
        for uuid, info in zip(uuids, infos, strict=True)
        for other in uuids
    )


def uuid_of(device: int, info: GpuInfo) -> str:
    """The uuid of a device; JoinError where its process did not publish it."""
    if device not in info.gpus:
        raise JoinError(f"the process of device {device} did not publish it; its GPUs are {sorted(info.gpus)}")
    return info.gpus[device]
