"""The specification from which a plan's tables and shape follow. It names no ranks, so it can run elsewhere, too."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import jaxring._native as _native
from jaxring.plan import dtypes, protocols
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.codes import CodesSpec
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.epilogue import EpilogueSpec
from jaxring.plan.schedule import Results, Schedule, Spec
from jaxring.runtime import schedules
from jaxring.settings import settings
from jaxring.world import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

# A tile of a memory schedule: large enough to cost nothing per tile, small enough to share lanes fairly, and for pages
# that are cleared at a tile's first touch to stay in the cache until it is written, in the results of 8 ranks too.
_MEMORY_TILE_BYTES = 64 * 1024
# A message that stays on its host takes half a slot, so that sender and receiver find it in the caches. Over a network
# fewer wakes count more than that: whole slots took 10 to 22% off an all-reduce of 4 to 32 MiB between 4 hosts.
_ON_HOST = 2
# Pieces of a block begin at multiples of this: at cache lines where they are messages; in memory a lane of less costs
# more than what it moves.
_PIECE_BYTES, _MEMORY_PIECE_BYTES = 64, 4096
_MOST_RANKS, _MOST_BYTES = 1 << 12, 1 << 20


@dataclasses.dataclass(frozen=True)
class PlanSpec:
    """What a plan is made from, without the identity of its ranks.

    ``collective`` has the name that schedules use, ``domains`` is the memory domain of each rank, and ``block`` is the
    number of elements of a block, 0 where blocks differ. ``order`` is the domains' in rings, empty for that of their
    lowest ranks. ``epilogue``: what is applied to complete values; ``codes``: how messages are encoded. A plan with
    either has no JSON.
    """

    collective: str
    half: str
    algorithm: str
    protocol: str
    channels: int
    domains: tuple[int, ...]
    root: int
    perm: tuple[tuple[int, int], ...]
    dtype: str
    op: str | None
    block: int
    order: tuple[int, ...] = ()
    epilogue: EpilogueSpec | None = None
    codes: CodesSpec | None = None

    def schedule(self) -> Schedule:
        """The schedule of all ranks. Raises ValueError for an algorithm that does not exist."""
        spec = Spec(
            self.collective,
            len(self.domains),
            self.algorithm,
            root=self.root,
            channels=self.channels,
            placement=self.domains,
            perm=self.perm,
            order=self.order,
        )
        return schedules.schedule(self.half, spec, Results.VALUES if self.epilogue is None else self.epilogue.results)

    def shape(self, plan: _native.PlanBuilder, links: int, across: bool = False) -> None:
        """Gives a plan its data, its shape and its protocol. ``across``: messages leave their host."""
        schedule = self.schedule()
        divisor = len(self.domains) if self.op == "mean" else 0
        op = -1 if self.op is None else dtypes.REDUCE_OPS[self.op]
        plan.set_data(dtypes.dtype_code(self.dtype), op, divisor, self.block, self._exact())
        if self.epilogue is not None:
            further = [dtypes.dtype_code(each) for each in self.epilogue.further]
            plan.set_epilogue(list(self.epilogue.functions), dtypes.dtype_code(self.epilogue.result), further)
        plan.set_shape(
            schedule.in_blocks, schedule.out_blocks, schedule.pieces, schedule.scratch_chunks, schedule.nlanes
        )
        element = dtypes.element_bytes(self.dtype)
        widest = element if self.op is None else max(element, dtypes.accumulator_bytes(self.dtype))
        if self.epilogue is not None:
            widest = max(widest, dtypes.element_bytes(self.epilogue.result))
        tile = _tile_elements(self.protocol, element, widest * schedule.group, across)
        piece = _MEMORY_PIECE_BYTES if self.protocol == "memory" else _PIECE_BYTES
        if self.codes is not None:
            plan.set_codes(self.codes.number, self.codes.stochastic, self.codes.first_word)
            # Tiles are as long as without codes: values are read and written at the same pace.
            piece, tile = self.codes.block * element, max(1, tile // self.codes.block) * self.codes.block
        plan.set_protocol(protocols.CPU[self.protocol], tile, links, piece)

    def _exact(self) -> bool:
        """Whether its algorithm promises exact sums."""
        algorithm = ALGORITHMS.get(self.algorithm)
        return algorithm is not None and algorithm.exact

    def add_tables(self, plan: _native.PlanBuilder, local: Iterable[tuple[int, int]]) -> None:
        """Gives a plan the tables of its local ranks, each with its rank as the call counts."""
        for rank, caller in local:
            steps, lane_begin, peers = schedules.table(self.schedule(), rank)
            plan.add_local(rank, caller, steps, lane_begin, peers)

    def to_json(self, names: Iterable[str]) -> str:
        """With the ranks' names."""
        fields = dataclasses.asdict(self)
        del fields["epilogue"], fields["codes"]
        return json.dumps(fields | {"names": list(names)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: bytes) -> tuple[PlanSpec, list[str]]:
        """What `to_json` wrote, also that of the version before, whose files of operands say "nodes". ValueError."""
        raw = wire.decode(data, _MOST_BYTES)
        if "nodes" in raw and "domains" not in raw:
            raw["domains"] = raw.pop("nodes")
        names, domains, perm = raw.pop("names", None), raw.pop("domains", None), raw.get("perm")
        order = raw.pop("order", [])
        if not isinstance(domains, list) or not isinstance(names, list) or not isinstance(perm, list):
            raise ValueError("domains, names or perm is not a list")
        if not isinstance(order, list):
            raise ValueError("order is not a list")
        if not 1 <= len(domains) == len(names) <= _MOST_RANKS:
            raise ValueError(f"{len(domains)} domains for {len(names)} names")
        wanted = {field.name for field in dataclasses.fields(cls)} - {"domains", "order", "epilogue", "codes"}
        if raw.keys() - wanted:
            raise ValueError(f"unexpected fields: {', '.join(sorted(map(ascii, raw.keys() - wanted)))[:200]}")
        if wanted - raw.keys():
            raise ValueError(f"missing fields: {', '.join(sorted(wanted - raw.keys()))}")
        last = len(domains) - 1

        def pair(entry: Any) -> tuple[int, int]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise ValueError("perm does not hold pairs")
            return wire.integer(entry[0], "source", 0, last), wire.integer(entry[1], "target", 0, last)

        known = (
            ("protocol", protocols.CPU),
            ("op", {None: 0} | dtypes.REDUCE_OPS),
            ("dtype", dtypes.DTYPE_CODES),
            ("collective", COLLECTIVES),
            ("half", {"both": 0}),  # nothing else is saved
        )
        for field, values in known:
            if not isinstance(raw[field], str | None) or raw[field] not in values:
                raise ValueError(f"there is no such {field}")
        try:
            if raw["op"] is not None:
                dtypes.check(raw["op"], raw["dtype"])
        except TypeError as error:
            raise ValueError(str(error)) from None
        if (raw["op"] is not None) != (COLLECTIVES[raw["collective"]].reduces):
            raise ValueError("its operation is not one of its collective")
        plan_spec = cls(
            collective=wire.text(raw["collective"], "collective", 64),
            half=wire.text(raw["half"], "half", 8),
            algorithm=wire.text(raw["algorithm"], "algorithm", 256),
            protocol=raw["protocol"],
            channels=wire.integer(raw["channels"], "channels", 1, 1 << 12),
            domains=tuple(wire.integer(domain, "domain", 0, last) for domain in domains),
            root=wire.integer(raw["root"], "root", 0, last),
            perm=tuple(pair(entry) for entry in perm),
            dtype=wire.text(raw["dtype"], "dtype", 64),
            op=raw["op"],
            block=wire.integer(raw["block"], "block", 0, 1 << 48),
            order=tuple(wire.integer(domain, "order", 0, last) for domain in order),
        )
        return plan_spec, [wire.text(name, "name", 512) for name in names]


def _tile_elements(protocol: str, element: int, widest: int, across: bool) -> int:
    if protocol == "memory":
        return max(1, _MEMORY_TILE_BYTES // element)
    payload = _native.ll_payload_bytes() if protocol == "ll" else settings().slot_bytes // (1 if across else _ON_HOST)
    return max(1, payload // widest)
