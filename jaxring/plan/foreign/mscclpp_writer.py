"""Writes a schedule as an execution plan of MSCCL++: each lane is a thread block, and each message a put into a chunk
of the receiver's scratch that is its own, with a signal behind it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jaxring.plan.foreign.names import BUFFERS, TO_THEIRS
from jaxring.plan.schedule import Buffer, Flag, Kind

if TYPE_CHECKING:
    from jaxring.plan.schedule import Chunk, Lane, Schedule, Step

_NOP: dict[str, Any] = {"name": "nop"}


def text(schedule: Schedule) -> str:
    """The file. Raises ValueError for a schedule that goes by memory, or gathers messages."""
    spec = schedule.spec
    name = TO_THEIRS.get(spec.collective)
    if name is None:
        raise ValueError(f"MSCCL++ has no {spec.collective}; it has {', '.join(TO_THEIRS)}")
    writer = _Writer(schedule)
    plan = {
        "name": f"jaxring_{spec.algorithm}_{spec.collective}_{spec.nranks}",
        "collective": name,
        "protocol": "Simple",
        "inplace": False,
        "reuse_resources": False,
        "gpus": [writer.gpu(rank) for rank in range(spec.nranks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": (1 << 64) - 1,
    }
    return json.dumps(plan, indent=1) + "\n"


class _Writer:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        ranks = range(schedule.spec.nranks)
        self.lanes = [schedule.lanes(rank) for rank in ranks]
        # The chunk of each message in the scratch of its receiver, behind that of the lanes.
        self.room = [schedule.scratch_chunks * schedule.nlanes for _ in ranks]
        self.slots: dict[tuple[int, int, int], list[int]] = {}
        joined: set[tuple[int, int, int]] = set()
        for rank in ranks:
            for lane, steps in enumerate(self.lanes[rank]):
                for number, step in enumerate(steps):
                    self._check(rank, lane, number, step)
                    for source in _received(rank, step):
                        self.slots.setdefault((source, rank, lane), []).append(self.room[rank])
                        self.room[rank] += 1
                        joined |= {(rank, source, lane), (source, rank, lane)}
        # Two ranks have the same channel on either side: one for each lane, in the order of lanes.
        self.channels = [sorted((peer, lane) for who, peer, lane in joined if who == rank) for rank in ranks]

    def _check(self, rank: int, lane: int, number: int, step: Step) -> None:
        where = f"{self.schedule.spec.algorithm}, rank {rank}, lane {lane}, step {number}"
        if any(peer.memory for peer in (*step.send, *step.recv)):
            raise ValueError(f"{where}: it goes by memory that ranks share; only messages can be written")
        if step.flags & Flag.ZERO or step.kind not in (Kind.MOVE, Kind.REDUCE):
            raise ValueError(f"{where}: MSCCL++ has no operation like {step}")

    def gpu(self, rank: int) -> dict[str, Any]:
        """A rank's part of the plan."""
        schedule = self.schedule
        peers = sorted({peer.rank for lane in self.lanes[rank] for step in lane for peer in step.send})
        remote = [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in peers]
        connected = [peer for peer, _ in self.channels[rank]]
        return {
            "id": rank,
            "input_chunks": schedule.in_blocks * schedule.pieces,
            "output_chunks": schedule.out_blocks * schedule.pieces,
            "scratch_chunks": self.room[rank],
            "threadblocks": [self._block(rank, lane, steps, peers) for lane, steps in enumerate(self.lanes[rank])],
            "channels": [{"channel_type": "memory", "connected_to": connected}] if connected else [],
            "remote_buffers": remote,
            "semaphores": [],
        }

    def _block(self, rank: int, lane: int, steps: Lane, peers: list[int]) -> dict[str, Any]:
        own = [(index, peer) for index, (peer, of) in enumerate(self.channels[rank]) if of == lane]
        channel = {peer: position for position, (_, peer) in enumerate(own)}
        sends = sorted({peer.rank for step in steps for peer in step.send})
        buffer = {peer: position for position, peer in enumerate(sends)}
        taken: dict[tuple[int, int], int] = {}
        ops: list[dict[str, Any]] = []
        for step in steps:
            ops += self._ops(rank, lane, step, channel, buffer, taken)
        block: dict[str, Any] = {"id": lane, "ops": ops, "channels": []}
        if own:
            block["channels"] = [{"channel_type": "memory", "channel_ids": [index for index, _ in own]}]
        if sends:
            ids = [peers.index(peer) for peer in sends]
            block["remote_buffer_refs"] = [{"access_channel_type": "memory", "remote_buffer_ids": ids}]
        return block

    def _ops(
        self,
        rank: int,
        lane: int,
        step: Step,
        channel: dict[int, int],
        buffer: dict[int, int],
        taken: dict[tuple[int, int], int],
    ) -> list[dict[str, Any]]:
        """The operations of a step. ``taken``: messages so far, by sender and receiver."""

        def slot(source: int, target: int) -> int:
            number = taken[source, target] = taken.get((source, target), -1) + 1
            return self.slots[source, target, lane][number]

        received = _received(rank, step)
        sources = []
        for peer in step.recv:
            if peer.rank == rank:
                sources.append(self._local(lane, step.src))
            else:
                sources.append({"type": "s", "index": slot(peer.rank, rank), "size": 1})
        if not step.recv:
            sources.append(self._local(lane, step.src))
        ops: list[dict[str, Any]] = []
        if received:
            ops += [_sync("wait", [channel[source] for source in received]), _NOP]
        kept = self._local(lane, step.dst) if step.dst else None
        remote = [{"buffer_id": buffer[p.rank], "index": slot(rank, p.rank), "size": 1} for p in step.send]
        value = sources[0]
        if len(sources) > 1:
            # A reduction is made somewhere: where there is no other place, in that of its first message.
            value = kept or next(each for each in sources if each["type"] == "s")
            name = "res" if remote else "re"
            ops.append({"name": name, "src_buff": sources, "dst_buff": [value, *remote], "reduce_op": "sum"})
            if remote:
                ops[-1]["channel_type"] = "memory"
        else:
            if kept:
                ops.append({"name": "copy", "src_buff": [value], "dst_buff": [kept]})
            if remote:
                put = {"name": "put", "src_buff": [value] * len(remote), "dst_buff": remote, "channel_type": "memory"}
                ops.append(put)
        if remote:
            ops += [_NOP, _sync("signal", [channel[peer.rank] for peer in step.send])]
        return [*ops, _NOP]

    def _local(self, lane: int, chunk: Chunk | None) -> dict[str, Any]:
        assert chunk is not None, "the verifier has seen that a step names what it reads"
        index = chunk.index + lane * self.schedule.scratch_chunks * (chunk.buffer is Buffer.SCRATCH)
        return {"type": BUFFERS[chunk.buffer], "index": index, "size": 1}


def _received(rank: int, step: Step) -> list[int]:
    """The ranks whose messages a step takes."""
    return [peer.rank for peer in step.recv if peer.rank != rank]


def _sync(name: str, channels: list[int]) -> dict[str, Any]:
    return {"name": name, "channel_ids": channels, "channel_type": "memory"}
