"""The table of JAXRING_* variables: name, kind, default, meaning. The names are NCCL's, and so are the meanings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.protocols import PROTOCOLS
from jaxring.plan.selection import EVERYTHING
from jaxring.settings import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "JAXRING_"
# Slots of a ring of the Simple protocol, which share BUFFSIZE: as many as NCCL has.
SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Variable:
    """One row. ``parse`` raises ValueError with what was expected.

    ``shared``: all processes of a job must have the same. ``nccl``: NCCL_<name> means the same and is read where ours
    is not set. ``engines``: those in which it has a meaning.
    """

    name: str
    kind: str
    default: object
    meaning: str
    parse: Callable[[str], object]
    shared: bool = False
    nccl: bool = False
    engines: str = "CPU, GPU"


VARIABLES: tuple[Variable, ...] = (
    Variable("HOSTID", "text", "", "Identity of this host instead of the one found out.", kinds.text_line, nccl=True),
    Variable(
        "SOCKET_IFNAME",
        "list",
        "",
        "Interfaces to listen on: comma list of name prefixes; a leading ^ excludes, a leading = makes names exact. "
        "Channels take the interfaces in turn; large messages go over all.",
        kinds.names,
        nccl=True,
    ),
    Variable(
        "SOCKET_CONGESTION",
        "name",
        "",
        "TCP's congestion control of connections that carry data, such as cubic; empty: the host's. bbr, which paces, "
        "takes much of a core at 10 Gbit/s.",
        kinds.text_line,
    ),
    Variable(
        "SHM_DISABLE",
        "flag",
        False,
        "1: no shared memory between processes, the network instead.",
        kinds.flag,
        shared=True,
        nccl=True,
    ),
    Variable(
        "TLS",
        "flag",
        False,
        "1: connections between hosts are encrypted, by TLS 1.3 with OpenSSL's library (libssl.so.3 or 1.1); TCP "
        "carries the data then, not RDMA.",
        kinds.flag,
        shared=True,
    ),
    Variable(
        "NET",
        "name",
        "",
        "Transport between hosts: IB (RDMA) or Socket (TCP); empty: RDMA where both hosts have it, TCP otherwise.",
        kinds.one_of("ib", "socket"),
        shared=True,
        nccl=True,
    ),
    Variable(
        "NET_PLUGIN",
        "text",
        "",
        "NCCL network plugin to go by between hosts: a path, or NAME of libnccl-net-NAME.so; none: none. NET must be "
        "unset then.",
        kinds.plugin,
        shared=True,
        nccl=True,
    ),
    Variable(
        "IB_DISABLE",
        "flag",
        False,
        "1: no RDMA, TCP instead.",
        kinds.flag,
        shared=True,
        nccl=True,
    ),
    Variable(
        "IB_HCA",
        "list",
        "",
        "RDMA devices to use: comma list of name prefixes, each may end in :port; ^ excludes, = makes names exact.",
        kinds.names,
        nccl=True,
    ),
    Variable(
        "IB_GID_INDEX",
        "integer",
        -1,
        "Index of the GID to use; unset: InfiniBand's LID, or RoCE v2 before v1 and IPv4 before IPv6.",
        kinds.integer(0, 65535),
        nccl=True,
    ),
    Variable(
        "IB_TIMEOUT",
        "integer",
        20,
        "How long a lost RDMA packet is waited for: 4.096 us times 2 to the power of this.",
        kinds.integer(1, 31),
        nccl=True,
    ),
    Variable("IB_RETRY_CNT", "integer", 7, "How often an RDMA packet is sent again.", kinds.integer(0, 7), nccl=True),
    Variable(
        "IB_QPS_PER_CONNECTION",
        "integer",
        1,
        "Queue pairs per RDMA connection; messages take turns on them.",
        kinds.integer(1, 16),
        shared=True,
        nccl=True,
    ),
    Variable(
        "NET_GDR_LEVEL",
        "name",
        "pxb",
        "How far a NIC may be from a GPU to address its memory (GPUDirect RDMA): LOC (never), PIX, PXB, PHB or SYS. "
        "Data of a GPU that is farther off goes by pinned host memory.",
        kinds.one_of(*kinds.DISTANCES),
        nccl=True,
        engines="GPU",
    ),
    Variable(
        "TOPO_FILE",
        "path",
        "",
        "Topology in NCCL's XML to use for NICs and GPUs instead of what this machine's /sys says: which RDMA port is "
        "near, and what `jaxring topo` shows.",
        kinds.text_line,
        nccl=True,
    ),
    Variable(
        "TOPO_DUMP_FILE",
        "path",
        "",
        "Process 0 writes its topology there, in NCCL's XML, when it joins the others.",
        kinds.text_line,
    ),
    Variable(
        "PXN_DISABLE",
        "flag",
        False,
        "1: the tuner does not choose algorithm `pxn`, in which a message leaves its host by the rank on its "
        "receiver's rail.",
        kinds.flag,
        shared=True,
        nccl=True,
        engines="CPU",
    ),
    Variable(
        "TIMEOUT", "seconds", 300.0, "Longest wait for a peer to come to a collective, and inside it.", kinds.seconds
    ),
    Variable(
        "JOIN_TIMEOUT",
        "seconds",
        60.0,
        "Longest wait for a link to a peer that has come, and in `jaxring.shrink` for one that does not.",
        kinds.seconds,
    ),
    Variable(
        "STALL_WARNING",
        "seconds",
        10.0,
        "When to warn of a collective that waits for others: after so long, after six times as long, and then every "
        "thirty times as long; 0: never.",
        kinds.seconds_or_never,
        engines="CPU",
    ),
    Variable(
        "LINK_TIMEOUT",
        "seconds",
        10.0,
        "How long another host may acknowledge nothing before it counts as cut off (TCP_USER_TIMEOUT and keepalive of "
        "the connections beside the data).",
        kinds.seconds,
    ),
    Variable(
        "THREADS", "integer", 0, "Engine workers; 0: one per core, at most 4.", kinds.integer(0, 256), engines="CPU"
    ),
    Variable(
        "PATIENCE",
        "integer",
        300,
        "Microseconds for which the thread that launches a small operation between processes waits for its messages "
        "itself, before it leaves them to the engine's workers, which sleep. To be longer than a round trip.",
        kinds.integer(0, 1_000_000),
        engines="CPU",
    ),
    Variable(
        "NSOCKS",
        "integer",
        2,
        "Links per peer between processes, if there are as many lanes: with TCP a socket each.",
        kinds.integer(1, 64),
        shared=True,
        engines="CPU",
    ),
    Variable(
        "BUFFSIZE",
        "bytes",
        1 << 21,
        f"Bytes of a link's buffer of the Simple protocol, which is {SLOTS} slots. On the CPU, "
        "messages that stay on their host take half a slot, and a process has 32 more of a slot's size for what "
        "it sends to several others there.",
        kinds.integer(SLOTS * 4096, 1 << 29, SLOTS * 4096),
        shared=True,
        nccl=True,
    ),
    Variable(
        "KEEP_BYTES",
        "bytes",
        1 << 26,
        "From a process's first collective on, malloc keeps freed blocks of up to so many bytes for the next results, "
        "and four times as much at the end of its heap; larger results come in fresh pages. 0, or where the "
        "environment sets malloc's own thresholds: malloc is left alone.",
        kinds.integer(0, 1 << 29),
        engines="CPU",
    ),
    Variable(
        "HUGE_PAGES",
        "flag",
        True,
        "0: large results in untouched memory do not ask the kernel for huge pages (madvise).",
        kinds.flag,
        engines="CPU",
    ),
    Variable(
        "ALGO",
        "list",
        EVERYTHING,
        "Algorithms to choose from, where they serve; a leading ^ excludes; empty: the tuner's choice.",
        kinds.some_of(*ALGORITHMS),
        shared=True,
    ),
    Variable(
        "PROTO",
        "list",
        EVERYTHING,
        "Protocols to choose from, where they serve; a leading ^ excludes; empty: the tuner's choice.",
        kinds.some_of(*PROTOCOLS),
        shared=True,
    ),
    Variable(
        "FUSION_BYTES",
        "bytes",
        4 << 20,
        "Neighbouring collectives of a program share a call up to so many bytes per rank; 0: each has its own.",
        kinds.integer(0, 1 << 40),
        engines="CPU",
    ),
    Variable(
        "P2P_DISABLE",
        "flag",
        False,
        "1: GPUs do not address each other's memory; their data goes over the network transports.",
        kinds.flag,
        shared=True,
        nccl=True,
        engines="GPU",
    ),
    Variable(
        "NVLS_ENABLE",
        "integer",
        2,
        "Algorithm `nvls`, the NVLink switch: 0: never, also where a call asks for it; 1: the tuner may choose it "
        "where the GPUs can; 2: where a call asks for it.",
        kinds.integer(0, 2),
        shared=True,
        nccl=True,
        engines="GPU",
    ),
    Variable(
        "LOCAL_REGISTER",
        "flag",
        True,
        "0: XLA's buffers are not shared with GPUs of other processes but copied to and from memory of our own.",
        kinds.flag,
        engines="GPU",
    ),
    Variable(
        "MIN_NCHANNELS",
        "integer",
        1,
        "Fewest channels of a collective that sends messages, where its algorithm serves with so many.",
        kinds.integer(1, 64),
        shared=True,
        nccl=True,
    ),
    Variable(
        "MAX_NCHANNELS",
        "integer",
        16,
        "Most channels of a collective that sends messages; on a GPU, most lanes (thread blocks) of any.",
        kinds.integer(1, 64),
        shared=True,
        nccl=True,
    ),
    Variable(
        "NTHREADS",
        "integer",
        0,
        "Threads of a lane on a GPU; 0: chosen.",
        kinds.integer(0, 384, 32),
        shared=True,
        engines="GPU",
    ),
    Variable(
        "CUDA_TRAP",
        "flag",
        True,
        "0: a failed collective does not end its GPU's context; its data may be used before the next call raises.",
        kinds.flag,
        engines="GPU",
    ),
    Variable(
        "CUDA_BULK_BYTES",
        "bytes",
        0,
        "Slices of so many bytes and more that only move go by bulk copies (cp.async.bulk) where GPUs have them, from "
        "compute capability 9.0 on; 0: never. No hardware has run them yet.",
        kinds.integer(0, 1 << 40),
        engines="GPU",
    ),
    Variable(
        "TRACE_DIR",
        "folder",
        "",
        "Keep the flight record (`jaxring trace`) in a file there, which stays when the process is killed.",
        kinds.text_line,
    ),
    Variable(
        "SAVE_OPERANDS",
        "bytes",
        0,
        "With TRACE_DIR: save there the operands of operations that fail, up to so many bytes of each process, for "
        "`jaxring trace replay`; 0: none.",
        kinds.integer(0, 1 << 38),
        engines="CPU",
    ),
    Variable(
        "CHECKSUM",
        "flag",
        False,
        "1: every message carries a CRC-32C of its payload, whatever the transport; a wrong one is an error. Between "
        "GPUs: every message that goes over the network.",
        kinds.flag,
        shared=True,
    ),
    Variable(
        "NAN_CHECK",
        "name",
        "",
        "warn or error: look for NaN and infinity in every operand and every sum; the first rank that holds one is "
        "named with the call, once per call in the log, or as the call's error.",
        kinds.one_of("warn", "error"),
        engines="CPU",
    ),
    Variable(
        "FAULTS",
        "list",
        (),
        "For tests: faults that befall messages between processes, as shares of them (drop=, delay=, duplicate=, "
        "truncate=, corrupt=; on sockets also reorder=, reset=), by seed=; delay_us= is the longest delay; data_only=1 "
        "spares the connections beside the data.",
        kinds.faults,
    ),
    Variable(
        "DEBUG",
        "level",
        "",
        "Log level of the logger 'jaxring': VERSION, WARN, INFO or TRACE.",
        kinds.level,
        nccl=True,
    ),
)


def markdown() -> str:
    """The table as docs/settings.md has it."""
    lines = ["| JAXRING_ | kind | default | engines | meaning |", "|---|---|---|---|---|"]
    for v in VARIABLES:
        marks = ("*" if v.shared else "") + ("°" if v.nccl else "")
        lines.append(f"| {v.name}{marks} | {v.kind} | {shown(v.default)} | {v.engines} | {v.meaning} |")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """A value as one would write it into the environment."""
    if isinstance(value, tuple):
        return ",".join(value)
    if value == -1:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)
