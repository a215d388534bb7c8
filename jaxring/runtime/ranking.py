"""The order in which the rings of a plan visit memory domains: measured, where all processes have measured the same."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple

from jaxring.topology import order as orders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.runtime.placement import RankPlace
    from jaxring.world.job_world import World

logger = logging.getLogger("jaxring.runtime")

_MOST_NAMES = 16


class Ranking(NamedTuple):
    """``domains`` in their order, empty for that of their lowest ranks; ``text`` says so for `jaxring.explain`."""

    domains: tuple[int, ...]
    text: str


PLAIN = Ranking((), "")


def order(domains: Sequence[int], placement: Sequence[RankPlace], world: World | None) -> Ranking:
    """The order of the memory ``domains`` of these ranks. Every process of theirs computes the same.

    Each has published the digest of its order. Where they differ it is the order of ranks, and a warning says so.
    """
    if world is None:
        return PLAIN
    infos = [world.info(process) for process in sorted({place.process for place in placement})]
    if len({info.host_id for info in infos}) == 1:
        return PLAIN
    if len({info.order for info in infos}) > 1:
        other = next(info for info in infos if info.order != infos[0].order)
        _say_orders_differ(str(infos[0]), str(other))
        return Ranking((), "hosts in the order of ranks, because processes have different measured orders")
    own = orders.current()
    if own is None:
        return PLAIN
    hosts = dict(zip(domains, (world.info(place.process) for place in placement), strict=True))
    named = [(hosts[domain].hostname, hosts[domain].host_id) for domain in range(len(hosts))]
    found, why = orders.of_domains(own, named)
    if why:
        return Ranking((), f"hosts in the order of ranks, because {why}")
    visited = list(dict.fromkeys(named[domain][0] for domain in found))
    listed = ", ".join(visited[:_MOST_NAMES]) + (", ..." if len(visited) > _MOST_NAMES else "")
    return Ranking(found, f"hosts in the order of {own.file}: {listed}")


@functools.cache
def _say_orders_differ(one: str, other: str) -> None:
    logger.warning(
        "jaxring: %s and %s have different measured orders of hosts (`jaxring tune --ranks`), so rings among them "
        "visit hosts in the order of ranks. Measure again with a process on each host, or copy one host's file to the "
        "others.",
        one,
        other,
    )
