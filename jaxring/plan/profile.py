"""A profile: the constants by which the tuner prices schedules on a kind of machine, and times measured on it.

A profile is a TOML file, one table for each class of connections and one for what they have in common. The tuner's
choices follow from it alone, so processes with equal profiles choose alike.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math

LINKS = ("memory", "shm", "tcp", "rdma")


@dataclasses.dataclass(frozen=True)
class Link:
    """A class of connections: ``alpha`` us from send to receive, ``overhead`` us of work per message, ``beta`` us per
    byte."""

    alpha: float
    overhead: float
    beta: float


@dataclasses.dataclass(frozen=True)
class Constants:
    """What all classes of connections have in common. Times in us.

    ``ll_alpha``, ``ll_beta``: the factors by which the ll protocol changes a link's alpha and beta.
    ``switch``: of a message to a process that has to be scheduled first, because processes outnumber processors.
    ``tile_bytes``: the part of a chunk that moves in one step; a lane's steps start over for each.
    ``crowd_percent``: of the bytes where many flows meet at one receiver (incast).
    ``read_back_percent``: of the bytes where a rank reads back from memory what it sends again.
    ``read_back_bytes``: a vector of so many between hosts leaves the caches of its host.
    ``cache_bytes``: a phase on one host stays in the caches while what up to ``cache_ranks`` ranks write in it is less.
    ``close_ranks``: up to so many ranks of one host there is no crowd.
    """

    ll_alpha: float
    ll_beta: float
    switch: float
    tile_bytes: int
    crowd_percent: int
    read_back_percent: int
    read_back_bytes: int
    cache_bytes: int
    cache_ranks: int
    close_ranks: int


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of one candidate: ``us[i]`` with ``nbytes[i]`` (ascending) of input per rank.

    ``domains``: memory domains; ``width``: ranks in each of them; ``hosts``: that they share equally.
    """

    collective: str
    algorithm: str
    protocol: str
    domains: int
    width: int
    hosts: int
    nbytes: tuple[int, ...]
    us: tuple[float, ...]

    def at(self, nbytes: int) -> float | None:
        """The time for so many bytes, between two sizes along a line in both logarithms. None beyond the sizes."""
        if nbytes in self.nbytes:
            return self.us[self.nbytes.index(nbytes)]
        pairs = itertools.pairwise(zip(self.nbytes, self.us, strict=True))
        for (low, below), (high, above) in pairs:
            if low < nbytes < high:
                share = math.log(nbytes / low) / math.log(high / low)
                return round(math.exp(math.log(below) + share * math.log(above / below)), 3)
        return None


@dataclasses.dataclass(frozen=True)
class Profile:
    """``kind``: the machines that it describes. ``source``: where its numbers come from."""

    kind: str
    source: str
    memory: Link
    shm: Link
    tcp: Link
    rdma: Link
    constants: Constants
    measured: tuple[Measured, ...] = ()

    def link(self, name: str) -> Link:
        """The class of connections of that name, one of LINKS."""
        found = getattr(self, name)
        assert isinstance(found, Link)
        return found

    @functools.cached_property
    def _by_candidate(self) -> dict[tuple[str, str, str, int, int, int], Measured]:
        return {(m.collective, m.algorithm, m.protocol, m.domains, m.width, m.hosts): m for m in self.measured}

    def time(
        self, collective: str, algorithm: str, protocol: str, layout: tuple[int, int, int], nbytes: int
    ) -> float | None:
        """The measured time in us of a candidate among (domains, width, hosts); None where it was not measured."""
        found = self._by_candidate.get((collective, algorithm, protocol, *layout))
        return found.at(nbytes) if found else None

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits, equal for profiles with equal numbers."""
        return hashlib.blake2b(self.text().encode(), digest_size=8).hexdigest()

    def text(self) -> str:
        """As TOML that `jaxring.plan.profile_file` reads back."""
        lines = [f"kind = {json.dumps(self.kind)}", f"source = {json.dumps(self.source)}"]
        for name in (*LINKS, "constants"):
            fields = dataclasses.asdict(getattr(self, name))
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
        for each in self.measured:
            fields = dataclasses.asdict(each)
            lines += ["", "[[measured]]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
        return "\n".join(lines) + "\n"
