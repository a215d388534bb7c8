"""What a message costs besides its way: the parameters of LogGP, and those of the engine that plays the tables.

LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995): a message of k bytes costs its sender the overhead o, is
k * G on the wire, arrives L later, and costs its receiver o; a sender begins a message no sooner than g after the one
before. L and G belong to the links (`jaxring.topology.fabric`), all others stand here. Units: microseconds and bytes.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The costs of messages and steps.

    ``send_overhead``, ``recv_overhead``: o at either end. ``gap``: g, between the beginnings of two messages that leave
    by one port. ``copy``: us for each byte that a step reads. ``memory``: us from a step's access to the memory of
    another rank until the first byte. ``barrier``: us until ranks that share memory know that all are there; they wait
    for each other at the beginning and at the end. ``launch``: us until a rank's first step.

    ``slots``: messages that a connection holds until its receiver has taken one. ``tile_bytes``: of the longest
    message. ``wire``: bytes on the wire for a byte of data, as the protocol has it (LL of NCCL: 2).
    ``serial``: a port sends one message after the other, as LogGP has it; otherwise all connections at once, fairly.
    ``multicast``: the share of their speed with which links carry what switches reduce or copy; 0: switches do neither.
    ``one_processor``: the lanes of a rank share one processor; otherwise each has its own.
    """

    send_overhead: float = 0.0
    recv_overhead: float = 0.0
    gap: float = 0.0
    copy: float = 0.0
    memory: float = 0.0
    barrier: float = 0.0
    launch: float = 0.0
    slots: int = 8
    tile_bytes: int = 512 * 1024
    wire: float = 1.0
    serial: bool = True
    multicast: float = 0.0
    one_processor: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name in ("slots", "tile_bytes", "wire") else 0
            if not least <= value < float("inf"):
                raise ValueError(f"{field.name} must be at least {least} and finite, not {value}")
