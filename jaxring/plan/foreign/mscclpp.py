"""Reads execution plans of MSCCL++ (https://github.com/microsoft/mscclpp, JSON) as schedules of ours, run by name.

A plan has for each GPU thread blocks with operations: they put data into buffers of other GPUs or get it from there,
reduce and copy, and wait for each other by signals, barriers, semaphores, and the flags of packets. They become actions
(`jaxring.plan.foreign.dataflow`) in an order in which a run makes them; a thread block becomes a lane. The loop of a
pipeline is made once, over all of its chunks, since the engine cuts messages itself. The result is verified.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.foreign import imported
from jaxring.plan.foreign.mscclpp_ops import (
    ALL,
    DATA,
    FOLD,
    MOST_CHUNKS,
    SIGNALS,
    WAITING,
    WAITS,
    Block,
    Op,
    Reader,
    Ref,
    get,
    tables,
)
from jaxring.plan.foreign.names import FROM_THEIRS
from jaxring.plan.foreign.places import Action
from jaxring.plan.schedule import ScheduleError

if TYPE_CHECKING:
    from jaxring.plan.foreign.places import Place

_MOST_RANKS = 1 << 12


def register(text: str) -> tuple[str, str]:
    """Makes ``algorithm=NAME`` run the plan in ``text``; returns the name and the collective.

    Raises ValueError where the text is no such plan, with the rank, the thread block and the operation that is wrong,
    or the plan does what our schedules cannot: reduce two chunks that both lie in a GPU's memory already, unless one is
    itself a reduction that only this one reads. What switches reduce or copy goes by messages to and from each rank.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: it is no JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise ValueError("it is no execution plan: the file is no table")
    name, wanted = get(data, "name", str, "the plan"), get(data, "collective", str, "the plan")
    collective = FROM_THEIRS.get(wanted.lower().replace("_", ""))
    if collective is None:
        raise ValueError(f"its collective is {wanted!r}; there are {', '.join(FROM_THEIRS)}")
    gpus = get(data, "gpus", list, "the plan")
    if not 1 <= len(gpus) <= _MOST_RANKS or [get(gpu, "id", int, "a GPU") for gpu in gpus] != list(range(len(gpus))):
        raise ValueError(f"its GPUs are not numbered from 0 on, up to {_MOST_RANKS}")
    counts = [{get(gpu, key, int, "a GPU", 0) for gpu in gpus} for key in ("input_chunks", "output_chunks")]
    blocks_in, blocks_out = COLLECTIVES[collective].in_blocks(len(gpus)), COLLECTIVES[collective].out_blocks(len(gpus))
    given, blocks = (counts[0], blocks_in) if max(counts[0]) else (counts[1], blocks_out)
    chunks = next(iter(given))
    if len(given) > 1 or not 0 < chunks <= MOST_CHUNKS or chunks % blocks:
        raise ValueError(f"its GPUs have {sorted(map(str, given))} chunks, not the same multiple of {blocks}")
    semaphores = {
        (rank, number): get(each, "init_value", int, f"rank {rank}, semaphore {number}")
        for rank, gpu in enumerate(gpus)
        for number, each in enumerate(tables(gpu, "semaphores", f"rank {rank}"))
    }
    in_place = get(data, "inplace", bool, "the plan")
    actions = _Run(Reader(gpus).blocks(), semaphores).play()
    return imported.register(name, collective, len(gpus), chunks // blocks, in_place, actions)


class _Run:
    """Makes all operations once, in an order in which they can be made."""

    def __init__(self, blocks: list[Block], semaphores: dict[tuple[int, int], int]) -> None:
        self.blocks = blocks
        self.actions: list[Action] = []
        self.signals: dict[tuple[int, int, int], int] = {}
        self.semaphores = dict(semaphores)
        self.barriers: dict[tuple[int, int], int] = {}
        self.passed: dict[tuple[int, int], int] = {}  # how often a block has come to a barrier
        self.shared: dict[tuple[int, str, tuple[Ref, ...], tuple[Ref, ...]], int] = {}
        self.written: set[tuple[int, Place]] = set()
        self.read = 0

    def play(self) -> list[Action]:
        at = [0] * len(self.blocks)
        left = deque(range(len(self.blocks)))
        idle = 0
        while left:
            number = left.popleft()
            block = self.blocks[number]
            moved = False
            # One at a time, so that thread blocks advance together as they do on a GPU.
            while at[number] < len(block.ops) and self.ready(block, at[number], block.ops[at[number]]):
                op = block.ops[at[number]]
                self.make(block, op)
                at[number] += 1
                moved = True
                if op.name in DATA:
                    break
            if at[number] < len(block.ops):
                left.append(number)
            idle = 0 if moved else idle + 1
            if left and idle > len(left):
                stuck, position = self.blocks[left[0]], at[left[0]]
                raise ScheduleError(
                    f"rank {stuck.rank}, thread block {stuck.number}, operation {position} "
                    f"({stuck.ops[position].name}) never gets what it waits for"
                )
        return self.actions

    def ready(self, block: Block, position: int, op: Op) -> bool:
        if op.name in WAITS:
            return all(self.signals.get(each, 0) > 0 for each in op.channels)
        if op.name == "sem_acquire":
            return all(self.semaphores[block.rank, each] > 0 for each in op.numbers)
        if op.name == "barrier":
            return self.meets(block, position, op)
        if op.name in WAITING:
            refs = [ref for ref in op.sources if ref.buffer == "s"]
            return all((ref.rank, ref.place(i)) in self.written for ref in refs for i in range(ref.size))
        return True

    def meets(self, block: Block, position: int, op: Op) -> bool:
        """Whether all thread blocks of a barrier have come to it; counts this one the first time."""
        key = (block.rank, op.numbers[0])
        mine = (id(block), position)
        if mine not in self.passed:
            count = self.barriers[key] = self.barriers.get(key, 0) + 1
            self.passed[mine] = -(-count // op.numbers[1])
        return self.barriers[key] >= self.passed[mine] * op.numbers[1]

    def make(self, block: Block, op: Op) -> None:
        if op.name in DATA and self.is_last(block, op):
            how = DATA[op.name]
            pairs: list[tuple[tuple[Ref, ...], tuple[Ref, ...]]]
            if how == ALL:
                pairs = [(op.sources[:1], op.targets)]
            elif how == FOLD:
                pairs = [(op.sources, op.targets)]
            else:
                pairs = [((a,), (b,)) for a, b in zip(op.sources, op.targets, strict=True)]
            for sources, targets in pairs:
                for offset in range(sources[0].size):
                    self.act(block, sources, targets, offset)
        for rank, peer, number in op.channels:
            if op.name in SIGNALS:
                key = (peer, rank, number)
                self.signals[key] = self.signals.get(key, 0) + 1
            else:
                self.signals[rank, peer, number] -= 1
        if op.name in ("sem_acquire", "sem_release"):
            for each in op.numbers:
                change = 1 if op.name == "sem_release" else -1
                self.semaphores[block.rank, each] += change

    def is_last(self, block: Block, op: Op) -> bool:
        """Whether all thread blocks of its group have come to an operation, of which each does a part."""
        if op.group == 1:
            return True
        key = (block.rank, op.name, op.sources, op.targets)
        self.shared[key] = self.shared.get(key, 0) + 1
        return self.shared[key] % op.group == 0

    def act(self, block: Block, sources: tuple[Ref, ...], targets: tuple[Ref, ...], offset: int) -> None:
        """An action; what is read on another rank is sent from there first."""
        places = []
        for ref in sources:
            place = ref.place(offset)
            if ref.rank != block.rank:
                self.read += 1
                own = (f"read from rank {ref.rank}", self.read)
                self.actions.append(Action(ref.rank, block.number, (place,), ((block.rank, own),)))
                place = own
            places.append(place)
        written = tuple((ref.rank, ref.place(offset)) for ref in targets)
        self.written.update(written)
        self.actions.append(Action(block.rank, block.number, tuple(places), written))
