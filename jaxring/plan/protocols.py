"""The protocols by which messages travel, which engine has which of them, and what planning for GPUs knows of each.

"memory" stands for no messages at all: every rank reads and writes the memory of the others.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class OnGpus:
    """A protocol of the CUDA engine.

    ``number``: by which the engine knows it. ``kernel``: what its kernels are called in docs/cuda-resources.txt.
    ``data_share``: of the bytes that travel. ``hop_us``: microseconds of a message's way, measured in a CUDA graph of
    ranks that share one H200 (docs/benchmarks/h200). ``slot_bytes``: the most that a message takes. Both are 0 where
    there are no messages. ``whole_lines``: 128-byte stores must arrive whole, which no network makes sure of.
    ``epilogues``: there are kernels that apply them.
    """

    number: int
    kernel: str
    data_share: float
    hop_us: float = 0.0
    slot_bytes: int = 0
    whole_lines: bool = False
    epilogues: bool = True


@dataclasses.dataclass(frozen=True)
class Protocol:
    """``cpu``: the number by which the CPU engine knows it. ``cpu`` and ``gpu`` are None where that engine has no such
    protocol."""

    name: str
    cpu: int | None
    gpu: OnGpus | None


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        # Kernels take tables without messages as simple's.
        Protocol("memory", cpu=0, gpu=OnGpus(0, "Simple", data_share=1.0)),
        # A hop of a ring took 5.6 to 5.8 us by simple, 1.5 and 0.42 for each KiB by ll, 3.1 and 0.22 for each KiB by
        # ll128.
        Protocol("simple", cpu=2, gpu=OnGpus(0, "Simple", data_share=1.0, hop_us=5.5, slot_bytes=1 << 26)),
        Protocol("ll", cpu=1, gpu=OnGpus(1, "LL", data_share=0.5, hop_us=1.5, slot_bytes=16 << 10)),
        Protocol(
            "ll128",
            cpu=None,
            gpu=OnGpus(
                2, "LL128", data_share=0.9375, hop_us=3.1, slot_bytes=32 << 10, whole_lines=True, epilogues=False
            ),
        ),
    )
}
CPU = {name: protocol.cpu for name, protocol in PROTOCOLS.items() if protocol.cpu is not None}
ON_GPUS = {name: protocol.gpu for name, protocol in PROTOCOLS.items() if protocol.gpu is not None}
GPU = {name: protocol.number for name, protocol in ON_GPUS.items()}
# Those of GPUs that carry messages, in the order of their numbers.
MESSAGES = dict(
    sorted(((name, each) for name, each in ON_GPUS.items() if each.slot_bytes), key=lambda entry: entry[1].number)
)


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


def with_epilogues() -> str:
    """The protocols of GPUs whose messages kernels apply epilogues to, in words."""
    return " or ".join(repr(name) for name, each in sorted(MESSAGES.items()) if each.epilogues)


def without_whole_lines() -> str:
    """The protocols of GPUs whose messages can go anywhere, in words."""
    return " or ".join(repr(name) for name, each in sorted(MESSAGES.items()) if not each.whole_lines)
