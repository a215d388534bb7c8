"""A candidate of the tuner: what is asked of an algorithm for a call, by its formula or, of a user's, by its table."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from jaxring.plan import cost, dtypes, table_cost, user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.schedule import Spec

if TYPE_CHECKING:
    from jaxring.plan.profile import Constants

MAX_CHANNELS = 4
# A further channel pays where each still has this many bytes of a chunk.
CHANNEL_BYTES = 512 * 1024
# A further interface carries a part of it from so many bytes on.
INTERFACE_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a candidate is for. ``nbytes``: of input per rank. ``interfaces``, ``spread``, ``root``, ``perm``: as
    `jaxring.plan.tuner.choose` has them."""

    collective: str
    placement: tuple[int, ...]
    hosts: tuple[int, ...]
    topology: cost.Topology
    nbytes: int
    dtype: object
    constants: Constants
    interfaces: int
    spread: float
    root: int
    perm: tuple[tuple[int, int], ...]

    @functools.cached_property
    def widening(self) -> int:
        """The factor by which partial results are wider than the data."""
        return cost.widening(self.collective, dtypes.element_bytes(self.dtype), dtypes.accumulator_bytes(self.dtype))

    def spec(self, algorithm: str, channels: int = 1) -> Spec:
        """The spec of a schedule by a built-in algorithm, whose cost does not depend on root and pairs."""
        n = self.topology.nranks
        return Spec(self.collective, n, algorithm, channels=channels, placement=self.placement)


def candidate(call: Asked, name: str) -> Formula | Table:
    """The algorithm of that name. ScheduleError for a user's that does not serve these ranks."""
    return Formula(call, name) if user.find(name) is None else Table(call, name)


class Formula:
    """A built-in algorithm. ``silent``: it sends no messages. ``fixed``: its lanes cannot be multiplied by channels."""

    fixed = False

    def __init__(self, call: Asked, name: str) -> None:
        self._call, self._algorithm = call, ALGORITHMS[name]
        self.silent = call.topology.nranks == 1 or (call.topology.domains == 1 and self._algorithm.memory)

    def channels(self, ll: bool) -> int:
        """The number of channels that pays, without regard to the settings."""
        call, n = self._call, self._call.topology.nranks
        one = self.longest(1)
        ways = call.interfaces if call.topology.hosts > 1 else 1
        rails = 1 if ll else max(1, min(ways, one // INTERFACE_BYTES))
        deep = self._algorithm.channels
        if deep is not None:
            lanes = deep(n)
            return max(rails, 1 if call.topology.in_turn(self.longest(lanes)) else lanes)
        return 1 if ll else max(rails, min(MAX_CHANNELS, one // CHANNEL_BYTES))

    def longest(self, channels: int) -> int:
        """Bytes of the longest message."""
        return chunk_bytes(self._call.spec(self._algorithm.name, channels), self._call.nbytes, self._call.dtype)

    def shape(self, channels: int) -> cost.Shape:
        """What it costs."""
        call = self._call
        return self._algorithm.shape_on(
            call.collective, call.topology, call.nbytes, channels, call.widening, call.constants, call.spread
        )


class Table:
    """A user's algorithm, as `Formula` has one of ours. Its channels are the lanes that it has."""

    fixed = True

    def __init__(self, call: Asked, name: str) -> None:
        spec = dataclasses.replace(call.spec(name), root=call.root, perm=call.perm)
        self._call, self._element = call, dtypes.element_bytes(call.dtype)
        self._traffic = table_cost.of_user(spec, call.hosts, call.widening)
        self.silent = self._traffic.silent

    def channels(self, ll: bool) -> int:
        """One, for any protocol."""
        del ll
        return 1

    def longest(self, channels: int) -> int:
        """Bytes of the longest message."""
        del channels
        call = self._call
        return self._traffic.longest_bytes(call.collective, call.topology.nranks, call.nbytes, self._element)

    def shape(self, channels: int) -> cost.Shape:
        """What it costs."""
        del channels
        call = self._call
        return self._traffic.shape(call.collective, call.topology, call.nbytes, self._element, call.constants)


def chunk_bytes(spec: Spec, nbytes: int, dtype: object) -> int:
    """Bytes of the longest message of a collective with ``nbytes`` of input per rank, by a built-in algorithm.

    Where partial results travel it counts accumulator elements; direct sends raw and final values only.
    """
    elements = -(-nbytes // dtypes.element_bytes(dtype))
    schedule = build(spec)
    per_chunk = -(-elements // (spec.in_blocks * schedule.pieces)) * schedule.group
    folds = spec.facts.reduces and ALGORITHMS[spec.algorithm].partials
    return per_chunk * (dtypes.accumulator_bytes(dtype) if folds else dtypes.element_bytes(dtype))
