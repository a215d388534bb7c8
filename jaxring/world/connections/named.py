"""Connections that have a name, since they can go on over another path."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.world.identity import ProcessInfo
    from jaxring.world.transports.record import PortPairs


@dataclasses.dataclass(eq=False)
class Named:
    """One that this process has dialled, by its name `path`.

    `home`: the peer's address that it was made with; `now`: the present one. `data`: it is a link, and not the control
    connection. `tried`: the peer's address at which it did not go on in the last attempt, so that others are tried
    first. An RDMA link has the names of `pairs` as addresses: `home_pair` is the first, `pair` the present one.
    """

    path: str
    peer: ProcessInfo
    home: str
    now: str
    data: bool
    pairs: PortPairs | None = None
    home_pair: int = 0
    pair: int = 0
    tried: str = ""
    attempts: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    moving: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    return_s: float = 0.0
    return_at: float = 0.0
    returned_at: float = float("-inf")
