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

    ``shared``: all processes of a job must have the same value. ``nccl``: NCCL_<name> means the same and is read where
    this one is not set. ``engines``: the engines that use it.
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
    Variable("HOSTID", "text", "", "This host's identity, instead of the detected one.", kinds.text_line, nccl=True),
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
        "TCP congestion control of the connections that carry data, such as cubic; empty: the host's. The pacing of "
        "bbr takes much of a core at 10 Gbit/s.",
        kinds.text_line,
    ),
    Variable(
        "SHM_DISABLE",
        "flag",
        False,
        "1: processes of one host use the network instead of shared memory.",
        kinds.flag,
        shared=True,
        nccl=True,
    ),
    Variable(
        "TLS",
        "flag",
        False,
        "1: connections between hosts are encrypted with TLS 1.3 by OpenSSL's library (libssl.so.3 or 1.1); TCP then "
        "carries the data, not RDMA.",
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
        "NCCL network plugin to use between hosts: a path, or NAME of libnccl-net-NAME.so; none: no plugin. NET must "
        "then be unset.",
        kinds.plugin,
        shared=True,
        nccl=True,
    ),
    Variable(
        "IB_DISABLE",
        "flag",
        False,
        "1: TCP instead of RDMA.",
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
        "How long an RDMA port waits for the acknowledgement of a packet: 4.096 us times 2 to the power of this.",
        kinds.integer(1, 31),
        nccl=True,
    ),
    Variable(
        "IB_RETRY_CNT", "integer", 7, "How often an RDMA port sends a packet again.", kinds.integer(0, 7), nccl=True
    ),
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
        "Data of a GPU that is farther away goes through pinned host memory.",
        kinds.one_of(*kinds.DISTANCES),
        nccl=True,
        engines="GPU",
    ),
    Variable(
        "TOPO_FILE",
        "path",
        "",
        "Topology of NICs and GPUs in NCCL's XML, used instead of this machine's /sys to choose near RDMA ports and "
        "by `jaxring topo`.",
        kinds.text_line,
        nccl=True,
    ),
    Variable(
        "TOPO_DUMP_FILE",
        "path",
        "",
        "Process 0 writes its topology to this file, in NCCL's XML, when it joins the others.",
        kinds.text_line,
    ),
    Variable(
        "PXN_DISABLE",
        "flag",
        False,
        "1: the tuner does not choose algorithm `pxn`, in which the rank on the receiver's rail sends a message that "
        "leaves the host.",
        kinds.flag,
        shared=True,
        nccl=True,
        engines="CPU",
    ),
    Variable(
        "TIMEOUT", "seconds", 300.0, "Longest wait for a peer to reach a collective, and within it.", kinds.seconds
    ),
    Variable(
        "JOIN_TIMEOUT",
        "seconds",
        60.0,
        "Longest wait for a link to a peer that has joined, and in `jaxring.shrink` for a process that does not call.",
        kinds.seconds,
    ),
    Variable(
        "STALL_WARNING",
        "seconds",
        10.0,
        "When to warn of a collective that waits for others: after this time, after six times this time, and then "
        "whenever thirty times this time have passed; 0: never.",
        kinds.seconds_or_never,
        engines="CPU",
    ),
    Variable(
        "LINK_TIMEOUT",
        "seconds",
        10.0,
        "How long another host may acknowledge nothing before it counts as unreachable (TCP_USER_TIMEOUT and keepalive "
        "of the control connections).",
        kinds.seconds,
    ),
    Variable(
        "THREADS", "integer", 0, "Engine workers; 0: one per core, at most 4.", kinds.integer(0, 256), engines="CPU"
    ),
    Variable(
        "PATIENCE",
        "integer",
        300,
        "Microseconds for which the thread that launches a small operation between processes polls for its messages "
        "before it hands the operation to the engine's workers, which sleep. It should exceed a round trip.",
        kinds.integer(0, 1_000_000),
        engines="CPU",
    ),
    Variable(
        "NSOCKS",
        "integer",
        2,
        "Links to each peer process, at most one per lane; with TCP each is a socket.",
        kinds.integer(1, 64),
        shared=True,
        engines="CPU",
    ),
    Variable(
        "BUFFSIZE",
        "bytes",
        1 << 21,
        f"Bytes of a link's buffer of the Simple protocol, which has {SLOTS} slots. On the CPU, messages within a host "
        "use half a slot, and a process has 32 more slots for data that it sends to several processes of its host.",
        kinds.integer(SLOTS * 4096, 1 << 29, SLOTS * 4096),
        shared=True,
        nccl=True,
    ),
    Variable(
        "KEEP_BYTES",
        "bytes",
        1 << 26,
        "From a process's first collective on, malloc keeps freed blocks of up to this size for the next results, and "
        "four times this size at the end of its heap; larger results get fresh pages. With 0, or where the environment "
        "sets malloc's own thresholds, malloc is not changed.",
        kinds.integer(0, 1 << 29),
        engines="CPU",
    ),
    Variable(
        "HUGE_PAGES",
        "flag",
        True,
        "0: the kernel is not asked (madvise) for huge pages for large results in untouched memory.",
        kinds.flag,
        engines="CPU",
    ),
    Variable(
        "ALGO",
        "list",
        EVERYTHING,
        "Algorithms to choose from, where they are possible; a leading ^ excludes; empty: the tuner's choice.",
        kinds.some_of(*ALGORITHMS),
        shared=True,
    ),
    Variable(
        "PROTO",
        "list",
        EVERYTHING,
        "Protocols to choose from, where they are possible; a leading ^ excludes; empty: the tuner's choice.",
        kinds.some_of(*PROTOCOLS),
        shared=True,
    ),
    Variable(
        "FUSION_BYTES",
        "bytes",
        4 << 20,
        "Neighbouring collectives of a program are fused into one call up to this many bytes per rank; 0: no fusion.",
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
        "where the GPUs have it; 2: only where a call asks for it.",
        kinds.integer(0, 2),
        shared=True,
        nccl=True,
        engines="GPU",
    ),
    Variable(
        "LOCAL_REGISTER",
        "flag",
        True,
        "0: XLA's buffers are not shared with GPUs of other processes but copied to and from jaxring's own memory.",
        kinds.flag,
        engines="GPU",
    ),
    Variable(
        "MIN_NCHANNELS",
        "integer",
        1,
        "Fewest channels of a collective that sends messages, where its algorithm can use that many.",
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
        "Slices of at least this size that are only moved use bulk copies (cp.async.bulk), on GPUs of compute "
        "capability 9.0 and later; 0: never. They have not run on hardware yet.",
        kinds.integer(0, 1 << 40),
        engines="GPU",
    ),
    Variable(
        "TRACE_DIR",
        "folder",
        "",
        "Keep the flight record (`jaxring trace`) in a file in this folder, which stays when the process is killed.",
        kinds.text_line,
    ),
    Variable(
        "SAVE_OPERANDS",
        "bytes",
        0,
        "With TRACE_DIR: save the operands of failed operations there, up to this many bytes of each process, for "
        "`jaxring trace replay`; 0: none.",
        kinds.integer(0, 1 << 38),
        engines="CPU",
    ),
    Variable(
        "CHECKSUM",
        "flag",
        False,
        "1: every message carries a CRC-32C of its payload, on all transports; a wrong one is an error. Between GPUs: "
        "every message that goes over the network.",
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
        "For tests: faults injected into messages between processes, as shares of all messages (drop=, delay=, "
        "duplicate=, truncate=, corrupt=; on sockets also reorder=, reset=), chosen by seed=; delay_us= is the longest "
        "delay; data_only=1 excludes the control connections.",
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
    """The table of docs/settings.md."""
    lines = ["| JAXRING_ | kind | default | engines | meaning |", "|---|---|---|---|---|"]
    for v in VARIABLES:
        marks = ("*" if v.shared else "") + ("°" if v.nccl else "")
        lines.append(f"| {v.name}{marks} | {v.kind} | {shown(v.default)} | {v.engines} | {v.meaning} |")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """A value in the form in which it is set in the environment."""
    if isinstance(value, tuple):
        return ",".join(value)
    if value == -1:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)
