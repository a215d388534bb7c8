"""The protocols by which messages travel, and which engine has which of them.

"memory" stands for no messages at all: every rank reads and writes the memory of the others.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Protocol:
    """``cpu`` and ``gpu``: the number by which that engine knows it; None where it has no such protocol."""

    name: str
    cpu: int | None
    gpu: int | None


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("memory", cpu=0, gpu=0),  # kernels take tables without messages as simple's
        Protocol("simple", cpu=2, gpu=0),
        Protocol("ll", cpu=1, gpu=1),
        Protocol("ll128", cpu=None, gpu=2),
    )
}
CPU = {name: protocol.cpu for name, protocol in PROTOCOLS.items() if protocol.cpu is not None}
GPU = {name: protocol.gpu for name, protocol in PROTOCOLS.items() if protocol.gpu is not None}


def check(name: str | None, engine: str) -> None:
    """ValueError where ``engine`` ("CPU" or "GPU") has no protocol ``name``; it says which there are. None is none."""
    here = {"CPU": CPU, "GPU": GPU}[engine]
    if name is None or name in here:
        return
    choices = f"there are {', '.join(here)}"
    if name in PROTOCOLS:
        other = "GPU" if engine == "CPU" else "CPU"
        raise ValueError(f"protocol {name!r} is for ranks on {other}s; on {engine}s {choices}")
    raise ValueError(f"there is no protocol {name!r}; {choices}")
