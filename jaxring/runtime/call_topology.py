"""Where the ranks of a call are, as far as the choice for it depends on that."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.profile_file import COMMODITY
from jaxring.runtime.schedules import normalise
from jaxring.topology import calibration
from jaxring.world import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.plan.profile import Profile
    from jaxring.world.job_world import World

logger = logging.getLogger("jaxring.runtime")


class CallTopology(NamedTuple):
    """What `jaxring.runtime.choice.choose` asks for under the same names, the same in all processes of the ranks."""

    hosts: tuple[int, ...]
    interfaces: int
    processors: int
    network: str
    profile: Profile


def of_ranks(processes: Sequence[int], world: World | None) -> CallTopology:
    """The topology of a call among ranks, by the process of each, as these have published them in ``world``.

    ``world`` is None where one process has all of them. Raises JoinError where one has not published itself in time.
    """
    if world is None:
        return CallTopology((0,) * len(processes), 1, 0, "tcp", calibration.current())
    infos = {process: world.info(process) for process in sorted(set(processes))}
    hosts = normalise([infos[process].host_id for process in processes])
    # RDMA where all processes have a kind of port in common.
    kinds = set.intersection(*(set(info.rdma) for info in infos.values()))
    return CallTopology(
        hosts,
        min(info.interfaces() for info in infos.values()),
        identity.processors(infos.values()) if len(set(hosts)) == 1 else 0,
        "rdma" if kinds else "tcp",
        _profile(list(infos.values())),
    )


def in_other_hosts(processes: Iterable[int], world: World) -> set[int]:
    """Those that run on this process's processors and count as other hosts, as those of other containers do."""
    own, infos = world.own, [world.info(process) for process in set(processes)]
    return {info.index for info in infos if info.host_id != own.host_id and info.shares_processors(own)}


def _profile(infos: list[identity.ProcessInfo]) -> Profile:
    """The profile of this kind of machine where all processes have it, else the built-in one."""
    if len({info.profile for info in infos}) == 1:
        return calibration.current()
    other = next(info for info in infos if info.profile != infos[0].profile)
    _say_profiles_differ(str(infos[0]), str(other))
    return COMMODITY


@functools.cache
def _say_profiles_differ(one: str, other: str) -> None:
    logger.warning(
        "jaxring: %s and %s have different profiles of their machines (`jaxring tune`), so algorithms of collectives "
        "among them are chosen by the built-in profile. Copy one machine's file to the others, if they are alike.",
        one,
        other,
    )
