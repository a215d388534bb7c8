"""The placement of a call's ranks: the process and the device of each."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax

from jaxring.errors import JoinError
from jaxring.world.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.runtime.call import CallSpec
    from jaxring.world.store import Store

# The device id of each rank of this process that has reached a call so far.
Arrived = dict[int, int]


class RankPlace(NamedTuple):
    """The process and the device of a rank."""

    process: int
    device: int


class Request(Protocol):
    """The part of a planning request that all engines have."""

    @property
    def spec(self) -> str: ...

    @property
    def ordinal(self) -> int: ...

    @property
    def partitions(self) -> Sequence[int]: ...


def known_devices(request: Request, spec: CallSpec, arrived: Arrived) -> list[int] | None:
    """The device of each rank as the lowering knew it; None where it knew none, or where a rank ran on another one."""
    known, partitions = spec.devices, request.partitions
    if known is None or any(known[partitions[rank]] != device for rank, device in arrived.items()):
        return None
    return [known[p] for p in partitions]


def exchange_devices(
    store: Store,
    request: Request,
    spec: CallSpec,
    arrived: Callable[[], Arrived],
    epoch: int = 0,
    lost: dict[int, int] | None = None,
    waits: Waits | None = None,
    before: int = 0,
) -> list[int]:
    """The device of each rank, exchanged through the store: a program over an abstract mesh does not know it.

    ``arrived`` gives the device id of each of this process's ranks that have reached the call so far. ``lost`` holds
    the known devices of ranks that are lost. ``waits`` records which rank this waits for. ``before`` is how many sites
    of the same call asked earlier, maybe on other devices. Raises JoinError.
    """
    ranks = len(request.partitions)
    group = "-".join(str(p) for p in request.partitions)
    identity = f"{request.spec}/{request.ordinal}/{group}/{before}"
    name = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
    deadline = time.monotonic() + spec.timeout
    said: set[int] = set()
    found: dict[int, int] = dict(lost or {})
    with (waits or Waits()).waiting("the other ranks to publish their devices") as wait:
        while len(found) < ranks:
            for rank, device in arrived().items():
                if rank not in said:
                    store.set(f"jaxring/devices/{epoch}/{name}/{rank}", str(device).encode())
                    said.add(rank)
                    found[rank] = device
            missing = next((rank for rank in range(ranks) if rank not in found), None)
            if missing is None:
                break
            try:
                found[missing] = int(store.get(f"jaxring/devices/{epoch}/{name}/{missing}", 0.2))
            except JoinError:
                wait.note(f"rank {missing} has not reached this call")
                wait.check()
                if time.monotonic() > deadline:
                    what = f"rank {missing} did not reach {spec.describe()} in {spec.timeout:g} s"
                    raise JoinError(what) from None
    return [found[rank] for rank in range(ranks)]


def device_owners(platform: str) -> dict[int, int]:
    """The process of each device of that platform, by the device's id."""
    return {d.id: d.process_index for d in jax.devices(platform)}
