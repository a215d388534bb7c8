"""Writes a schedule as MSCCL's XML: each lane is a thread block on a channel of its own."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from jaxring.plan.foreign.names import BUFFERS, TO_THEIRS
from jaxring.plan.schedule import Buffer, Flag, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.schedule import Chunk, Schedule, Step


def text(schedule: Schedule) -> str:
    """The file. Raises ValueError for a schedule that MSCCL's thread blocks cannot make: one that goes by memory, whose
    steps have several peers, or whose lanes send to several ranks or receive from several."""
    spec = schedule.spec
    name = TO_THEIRS.get(spec.collective)
    if name is None:
        raise ValueError(f"MSCCL has no {spec.collective}; it has {', '.join(TO_THEIRS)}")
    chunks = {
        "i_chunks": str(schedule.in_blocks * schedule.pieces),
        "o_chunks": str(schedule.out_blocks * schedule.pieces),
        "s_chunks": str(schedule.scratch_chunks * schedule.nlanes),
    }
    root = ET.Element(
        "algo",
        name=f"jaxring_{spec.algorithm}_{spec.collective}_{spec.nranks}",
        proto="Simple",
        nchannels=str(schedule.nlanes),
        nchunksperloop=str(max(schedule.in_blocks, schedule.out_blocks) * schedule.pieces),
        ngpus=str(spec.nranks),
        coll=name,
        inplace="0",
    )
    for rank in range(spec.nranks):
        gpu = ET.SubElement(root, "gpu", {"id": str(rank), **chunks})
        for number, lane in enumerate(schedule.lanes(rank)):
            if lane:
                _block(schedule, gpu, rank, number, lane)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _block(schedule: Schedule, gpu: ET.Element, rank: int, number: int, lane: Sequence[Step]) -> None:
    where = f"{schedule.spec.algorithm}, rank {rank}, lane {number}"
    sends = {peer.rank for step in lane for peer in step.send}
    recvs = {peer.rank for step in lane for peer in step.recv if peer.rank != rank}
    if any(peer.memory for step in lane for peer in (*step.send, *step.recv)):
        raise ValueError(f"{where}: it goes by memory that ranks share, which MSCCL does not know")
    if len(sends) > 1 or len(recvs) > 1:
        raise ValueError(
            f"{where}: it sends to {len(sends)} ranks and receives from {len(recvs)}; MSCCL's have one each"
        )
    block = ET.SubElement(
        gpu,
        "tb",
        id=str(number),
        send=str(next(iter(sends), -1)),
        recv=str(next(iter(recvs), -1)),
        chan=str(number),
    )

    def add(kind: str, source: Chunk | None, target: Chunk | None) -> None:
        places: dict[str, str] = {}
        for chunk, buffer, offset in ((source, "srcbuf", "srcoff"), (target, "dstbuf", "dstoff")):
            index = 0 if chunk is None else chunk.index
            if chunk is not None and chunk.buffer is Buffer.SCRATCH:
                index += number * schedule.scratch_chunks
            places |= {buffer: "i" if chunk is None else BUFFERS[chunk.buffer], offset: str(index)}
        given = {"s": str(len(block)), "type": kind, **places, "cnt": "1", "depid": "-1", "deps": "-1", "hasdep": "0"}
        ET.SubElement(block, "step", given)

    for step in lane:
        received = any(peer.rank != rank for peer in step.recv)
        if (
            step.flags & Flag.ZERO
            or step.kind not in (Kind.MOVE, Kind.REDUCE)
            or (step.kind is Kind.REDUCE) != (received and step.src is not None)
        ):
            raise ValueError(f"{where}: MSCCL has no step like {step}")
        if step.kind is Kind.REDUCE:
            add("rr" + "c" * bool(step.dst) + "s" * bool(step.send), step.src, step.dst)
        elif received:
            add("rcs" if step.send else "r", None, step.dst)
        else:
            if step.dst:
                add("cpy", step.src, step.dst)
            if step.send:
                add("s", step.src, None)
