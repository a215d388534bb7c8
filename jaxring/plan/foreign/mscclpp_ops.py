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


def get(table: Any, key: str, kind: type, where: str) -> Any:
    value = table.get(key) if isinstance(table, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} has no {key} of type {kind.__name__}: {value!r}")
    return value


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
        for channel in self.gpus[rank].get("channels", []):
            kind = get(channel, "channel_type", str, f"rank {rank}: a channel")
            for peer in channel.get("connected_to", []):
                if type(peer) is not int or not 0 <= peer < len(self.gpus):
                    raise ValueError(f"rank {rank}: a channel is connected to {peer!r}, which is no rank")
                number = seen[kind, peer] = seen.get((kind, peer), -1) + 1
                found.setdefault(kind, []).append((rank, peer, number))
        return found

    def _switches(self, rank: int) -> list[tuple[list[Any], str]]:
        """The ranks of each group around a switch, and the buffer of theirs that it reaches."""
        where = f"rank {rank}: a switch"
        return [
            (sorted(get(group, "ranks", list, where)), channel.get("buffer_type", channel.get("buff")))
            for channel in self.gpus[rank].get("channels", [])
            if channel["channel_type"] == "switch"
            for group in get(channel, "rank_groups", list, where)
        ]

    def blocks(self) -> list[Block]:
        found = []
        for rank, gpu in enumerate(self.gpus):
            for number, block in enumerate(get(gpu, "threadblocks", list, f"rank {rank}")):
                where = f"rank {rank}, thread block {number}"
                ops = tuple(op for each in self._flat(block, where) for op in [self._op(rank, block, *each)])
                found.append(Block(rank, number, ops))
        return found

    def _flat(self, block: Any, where: str) -> list[tuple[Any, str]]:
        """The operations with their places; those of a pipeline in its place."""
        found: list[tuple[Any, str]] = []
        for position, op in enumerate(get(block, "ops", list, where)):
            at = f"{where}, operation {position}"
            if get(op, "name", str, at) == "pipeline":
                found += ((each, f"{at}.{inner}") for inner, each in enumerate(get(op, "ops", list, at)))
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
            at = get(op, "barrier_id", int, where)
            return Op(name, numbers=(at, get(op, "num_threadblocks", int, where)))
        if name in ORDER:
            ids = get(op, "semaphore_ids", list, where)
            known_ids = range(len(self.gpus[rank].get("semaphores", [])))
            if any(each not in known_ids for each in ids):
                raise ValueError(f"{where}: semaphores {ids}, of {len(known_ids)} that its GPU has")
            return Op(name, numbers=tuple(ids))
        kind = op.get("channel_type", "")
        given = op.get("channel_ids", []) if name in (*SIGNALS, *WAITS) else []
        channels = tuple(self._channel(rank, block, kind, each, where) for each in given)
        if name not in DATA:
            return Op(name, channels=channels)
        sources, targets = (self._refs(rank, block, kind, get(op, key, list, where), where) for key in _ENDS)
        pairs = DATA[name] == PAIRS
        if not sources or not targets or (pairs and len(sources) != len(targets)):
            raise ValueError(f"{where}: {name} has {len(sources)} sources and {len(targets)} targets")
        sizes = {(a.size, b.size) for a, b in zip(sources, targets, strict=True)} if pairs else set()
        if any(a != b for a, b in sizes) or (not pairs and len({each.size for each in (*sources, *targets)}) > 1):
            raise ValueError(f"{where}: the buffers of {name} have different sizes")
        group = op.get("tbg_info", {}).get("tbg_size", 1)
        if type(group) is not int or group < 1:
            raise ValueError(f"{where}: its group has {group!r} thread blocks")
        return Op(name, sources, targets, channels, group=group)

    def _channel(self, rank: int, block: Any, kind: str, number: Any, where: str) -> tuple[int, int, int]:
        known = self.channels[rank].get(kind, [])
        at = _listed(block, "channels", "channel_type", "channel_ids", kind, number)
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
            owners, buffer = [rank], ref.get("type")
            if "switch_channel_id" in ref:
                number = ref["switch_channel_id"]
                at = _listed(block, "channels", "channel_type", "channel_ids", "switch", number)
                if at not in range(len(self.switches[rank])):
                    raise ValueError(f"{where}: there is no switch channel {number!r} of its thread block")
                owners, buffer = self.switches[rank][at]
            elif "buffer_id" in ref:
                number = ref["buffer_id"]
                at = _listed(block, "remote_buffer_refs", "access_channel_type", "remote_buffer_ids", kind, number)
                remote = self.gpus[rank].get("remote_buffers", [])
                if at not in range(len(remote)):
                    raise ValueError(f"{where}: there is no {kind} buffer {number!r} of its thread block")
                owners, buffer = [remote[at].get("rank")], remote[at].get("type")
            known = range(len(self.gpus))
            if buffer not in ("i", "o", "s") or any(type(each) is not int or each not in known for each in owners):
                raise ValueError(f"{where}: a buffer is {buffer!r} of ranks {owners}, not i, o or s of ranks")
            found += (Ref(owner, buffer, index, size) for owner in owners)
        return tuple(found)


def _listed(block: Any, table: str, by: str, ids: str, kind: str, number: Any) -> int:
    """What a thread block has at place ``number`` among the numbers that it lists for a type of channel, or -1."""
    found = [each for part in block.get(table, []) if part.get(by) == kind for each in part.get(ids, [])]
    fits = type(number) is int and 0 <= number < len(found) and type(found[number]) is int
    return int(found[number]) if fits else -1
