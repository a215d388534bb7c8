"""The operations of an execution plan of MSCCL++, with channels and buffers resolved, which a plan names by their
numbers in a thread block."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxring.plan.foreign.places import Place

# What each operation does with its sources and targets: PAIRS one to one, ALL the first source to all targets, FOLD all
# sources together to all targets.
PAIRS, ALL, FOLD = "pairs", "all", "fold"
DATA = {
    "put": PAIRS, "pws": PAIRS, "pwsf": PAIRS, "get": PAIRS, "ppkt": PAIRS, "copy": PAIRS, "cpkt": PAIRS,
    "gstore": ALL, "gstorepkt": ALL, "glres": FOLD, "upkt": PAIRS, "rppkt": ALL,
    "re": FOLD, "res": FOLD, "rre": FOLD, "rres": FOLD,
    "repkt": FOLD, "respkt": FOLD, "recpkt": FOLD, "recspkt": FOLD,
}  # fmt: skip
# These wait until packets have arrived in the scratch that they read.
WAITING = ("upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt")
SIGNALS, WAITS = ("signal", "rlxsignal", "pws", "pwsf"), ("wait", "rlxwait")
EMPTY = ("nop", "flush")
_ENDS = ("src_buff", "dst_buff")
ORDER = ("barrier", "sem_acquire", "sem_release")
MOST_CHUNKS, _MOST_OPERATIONS = 1 << 20, 1 << 20


@dataclasses.dataclass(frozen=True)
class Ref:
    """Chunks of a buffer on a rank."""

    rank: int
    buffer: str
    index: int
    size: int

    def place(self, offset: int) -> Place:
        return self.buffer, self.index + offset


@dataclasses.dataclass(frozen=True)
class Op:
    """``channels``: pairs of semaphores by which it signals or waits: (own rank, peer, number). ``group``: how many
    thread blocks do a part of it each."""

    name: str
    sources: tuple[Ref, ...] = ()
    targets: tuple[Ref, ...] = ()
    channels: tuple[tuple[int, int, int], ...] = ()
    numbers: tuple[int, ...] = ()  # of a barrier and how many wait there, or of semaphores
    group: int = 1


@dataclasses.dataclass(frozen=True)
class Block:
    rank: int
    number: int
    ops: tuple[Op, ...]


def get(table: Any, key: str, kind: type, where: str, default: Any = None) -> Any:
    """The value of a key, of that kind. Raises ValueError where it has another, or where there is no default."""
    value = table.get(key, default) if isinstance(table, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} has no {key} of type {kind.__name__}: {value!r}")
    return value


def tables(table: Any, key: str, where: str) -> list[dict[str, Any]]:
    """A list of tables, empty where it is not there. Raises ValueError for what is no table."""
    found: list[dict[str, Any]] = get(table, key, list, where, [])
    for each in found:
        if not isinstance(each, dict):
            raise ValueError(f"{where}: one of its {key} is no table: {each!r}")
    return found


class Reader:
    """Resolves channels and remote buffers, which operations name by their numbers in a thread block."""

    def __init__(self, gpus: list[Any]) -> None:
        self.gpus = gpus
        self.channels = [self._connected(rank) for rank in range(len(gpus))]
        self.switches = [self._switches(rank) for rank in range(len(gpus))]
        self.operations = 0

    def _connected(self, rank: int) -> dict[str, list[tuple[int, int, int]]]:
        """By type the channels of a rank: itself, the peer, and which of those between the two it is."""
        found: dict[str, list[tuple[int, int, int]]] = {}
        seen: dict[tuple[str, int], int] = {}
        for channel in tables(self.gpus[rank], "channels", f"rank {rank}"):
            kind = get(channel, "channel_type", str, f"rank {rank}: a channel")
            for peer in get(channel, "connected_to", list, f"rank {rank}: a channel", []):
                if type(peer) is not int or not 0 <= peer < len(self.gpus):
                    raise ValueError(f"rank {rank}: a channel is connected to {peer!r}, which is no rank")
                number = seen[kind, peer] = seen.get((kind, peer), -1) + 1
                found.setdefault(kind, []).append((rank, peer, number))
        return found

    def _switches(self, rank: int) -> list[tuple[list[int], Any]]:
        """The ranks of each group around a switch, and the buffer of theirs that it reaches."""
        where = f"rank {rank}: a switch"
        found = []
        for channel in tables(self.gpus[rank], "channels", f"rank {rank}"):
            if channel["channel_type"] != "switch":
                continue
            for group in tables(channel, "rank_groups", where):
                ranks = get(group, "ranks", list, where)
                if any(type(each) is not int or not 0 <= each < len(self.gpus) for each in ranks):
                    raise ValueError(f"{where} joins {ranks}, which are not all ranks")
                found.append((sorted(ranks), channel.get("buffer_type", channel.get("buff"))))
        return found

    def blocks(self) -> list[Block]:
        found = []
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(tables(gpu, "threadblocks", f"rank {rank}")):
                where = f"rank {rank}, thread block {number}"
                ops = tuple(op for each in self._flat(block, where) for op in [self._op(rank, block, *each)])
                found.append(Block(rank, number, ops))
        return found

    def _flat(self, block: Any, where: str) -> list[tuple[Any, str]]:
        """The operations with their places; those of a pipeline in its place."""
        found: list[tuple[Any, str]] = []
        for position, op in enumerate(tables(block, "ops", where)):
            at = f"{where}, operation {position}"
            if get(op, "name", str, at) == "pipeline":
                found += ((each, f"{at}.{inner}") for inner, each in enumerate(tables(op, "ops", at)))
            else:
                found.append((op, at))
        self.operations += len(found)
        if self.operations > _MOST_OPERATIONS:
            raise ValueError(f"it has more than {_MOST_OPERATIONS} operations")
        return found

    def _op(self, rank: int, block: Any, op: Any, where: str) -> Op:
        name = get(op, "name", str, where)
        if name in EMPTY:
            return Op("nop")
        if name not in {*DATA, *SIGNALS, *WAITS, *ORDER}:
            known = ", ".join(sorted({*DATA, *SIGNALS, *WAITS, *ORDER, *EMPTY, "pipeline"}))
            raise ValueError(f"{where}: our schedules have no operation {name!r}; there are {known}")
        if name == "barrier":
            at, count = get(op, "barrier_id", int, where), get(op, "num_threadblocks", int, where)
            if count < 1:
                raise ValueError(f"{where}: {count} thread blocks wait at a barrier")
            return Op(name, numbers=(at, count))
        if name in ORDER:
            ids = get(op, "semaphore_ids", list, where)
            known_ids = range(len(tables(self.gpus[rank], "semaphores", f"rank {rank}")))
            if any(type(each) is not int or each not in known_ids for each in ids):
                raise ValueError(f"{where}: semaphores {ids}, of {len(known_ids)} that its GPU has")
            return Op(name, numbers=tuple(ids))
        kind = get(op, "channel_type", str, where, "")
        given = get(op, "channel_ids", list, where, []) if name in (*SIGNALS, *WAITS) else []
        channels = tuple(self._channel(rank, block, kind, each, where) for each in given)
        if name not in DATA:
            return Op(name, channels=channels)
        sources, targets = (self._refs(rank, block, kind, tables(op, key, where), where) for key in _ENDS)
        pairs = DATA[name] == PAIRS
        if not sources or not targets or (pairs and len(sources) != len(targets)):
            raise ValueError(f"{where}: {name} has {len(sources)} sources and {len(targets)} targets")
        sizes = {(a.size, b.size) for a, b in zip(sources, targets, strict=True)} if pairs else set()
        if any(a != b for a, b in sizes) or (not pairs and len({each.size for each in (*sources, *targets)}) > 1):
            raise ValueError(f"{where}: the buffers of {name} have different sizes")
        group = get(get(op, "tbg_info", dict, where, {}), "tbg_size", int, where, 1)
        if group < 1:
            raise ValueError(f"{where}: its group has {group!r} thread blocks")
        return Op(name, sources, targets, channels, group=group)

    def _channel(self, rank: int, block: Any, kind: str, number: Any, where: str) -> tuple[int, int, int]:
        known = self.channels[rank].get(kind, [])
        at = _listed(block, "channels", "channel_type", "channel_ids", kind, number, where)
        if at not in range(len(known)):
            raise ValueError(f"{where}: there is no {kind} channel {number!r} of its thread block")
        return known[at]

    def _refs(self, rank: int, block: Any, kind: str, refs: list[Any], where: str) -> tuple[Ref, ...]:
        """Buffers; that of a switch stands for those of all its ranks, in their order."""
        found: list[Ref] = []
        for ref in refs:
            index, size = get(ref, "index", int, where), get(ref, "size", int, where)
            if not 0 <= index <= MOST_CHUNKS or not 1 <= size <= MOST_CHUNKS:
                raise ValueError(f"{where}: there are no {size} chunks from chunk {index} on")
            owners: list[Any] = [rank]
            buffer = ref.get("type")
            if "switch_channel_id" in ref:
                number = ref["switch_channel_id"]
                at = _listed(block, "channels", "channel_type", "channel_ids", "switch", number, where)
                if at not in range(len(self.switches[rank])):
                    raise ValueError(f"{where}: there is no switch channel {number!r} of its thread block")
                owners, buffer = self.switches[rank][at]
            elif "buffer_id" in ref:
                number = ref["buffer_id"]
                names = ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids")
                at = _listed(block, *names, kind, number, where)
                remote = tables(self.gpus[rank], "remote_buffers", f"rank {rank}")
                if at not in range(len(remote)):
                    raise ValueError(f"{where}: there is no {kind} buffer {number!r} of its thread block")
                owners, buffer = [remote[at].get("rank")], remote[at].get("type")
            known = range(len(self.gpus))
            known_buffer = isinstance(buffer, str) and buffer in ("i", "o", "s")
            if not known_buffer or any(type(each) is not int or each not in known for each in owners):
                raise ValueError(f"{where}: a buffer is {buffer!r} of ranks {owners}, not i, o or s of ranks")
            found += (Ref(owner, str(buffer), index, size) for owner in owners)
        return tuple(found)


def _listed(block: Any, table: str, by: str, ids: str, kind: str, number: Any, where: str) -> int:
    """What a thread block has at place ``number`` among the numbers that it lists for a type of channel, or -1."""
    parts = [part for part in tables(block, table, where) if part.get(by) == kind]
    found = [each for part in parts for each in get(part, ids, list, where, [])]
    fits = type(number) is int and 0 <= number < len(found) and type(found[number]) is int
    return int(found[number]) if fits else -1
