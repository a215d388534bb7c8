"""Queues of messages between named ranks on GPUs: the connections they use, and how far a sender may run ahead.

A queue is what sends and receives of one tag over the same ranks share. Its messages may differ in shape: each shape
has connections of its own, whose slots hold several whole messages, and the queue's header ring says which is next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.plan.protocols import MESSAGES
from jaxring.runtime import schedules
from jaxring.runtime.cuda.rank_group import Shape, WireShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.runtime.call import CallSpec
    from jaxring.runtime.cuda.rank_group import Group

# Messages that a rank may send before the first is received: as many as fit QUEUE_BYTES, within these bounds.
DEPTHS = (2, 16)
QUEUE_BYTES = 64 << 20
# Headers that the ring holds, and the bytes of a slot for one.
_HEADER_RING = Shape(1, (WireShape(64, 512),) * len(MESSAGES), 0)
_UNIT = 512


def depth(nbytes: int) -> int:
    """How many messages of ``nbytes`` a queue holds: a power of two."""
    low, high = DEPTHS
    while high > low and high * nbytes > QUEUE_BYTES:
        high //= 2
    return high


def header_ring_shape() -> Shape:
    """The shape of a queue's header ring."""
    return _HEADER_RING


def queue_shape(nbytes: int, lanes: int, slot_bytes: int) -> Shape:
    """That of a communicator for messages of ``nbytes``: ``lanes`` share one, in slots of ``slot_bytes`` at most."""
    # Pieces end at 64-byte lines, so one may be that much longer than a share.
    piece = -(-nbytes // lanes) + 64
    slots = 1
    while slots * slot_bytes < piece:
        slots *= 2
    each = slot_bytes if slots > 1 else -(-piece // _UNIT) * _UNIT
    return Shape(lanes, (WireShape(depth(nbytes) * slots, each),) * len(MESSAGES), 0)


def names(spec: CallSpec, devices: Sequence[int]) -> tuple[str, str]:
    """The queue's name, and that of its messages of this call's shape; the same for both halves, in all processes."""
    queue = f"point_to_point/{spec.tag}/{spec.perm}/{list(devices)}"
    return queue, f"{queue}/{spec.message}"


def check(spec: CallSpec) -> int:
    """A number for a message's dtype and shape."""
    return schedules.number(spec.message, 8)


def connect(group: Group, perm: Sequence[Sequence[int]]) -> None:
    """Connections of local ranks with those that they send to and receive from; maybe with themselves."""
    peers: dict[int, set[int]] = {rank: set() for rank in group.local}
    for source, target in perm:
        for rank, peer in ((source, target), (target, source)):
            if rank in peers:
                peers[rank].add(peer)
    with group.lock:
        group.connect(peers, "simple", to_self=True)


def nbytes(spec: CallSpec) -> int:
    """The shape of one message."""
    return spec.block_bytes
