"""Records, checks and logs."""

from __future__ import annotations

import dataclasses

from jaxring.settings import kinds
from jaxring.settings.row import row


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What helps to find a fault."""

    debug: str = row(
        "level", "", "Log level of the logger 'jaxring': VERSION, WARN, INFO or TRACE.", kinds.level, nccl=True
    )
    trace_dir: str = row(
        "folder",
        "",
        "Keep the flight record (`jaxring trace`) in a file in this folder, which stays when the process is killed.",
        kinds.text_line,
    )
    save_operands: int = row(
        "bytes",
        0,
        "With TRACE_DIR: save the operands of failed operations there, up to this many bytes of each process, for "
        "`jaxring trace replay`; 0: none. Those of calls with an epilogue are not saved.",
        kinds.nbytes(0, 1 << 38),
        engines="CPU",
    )
    checksum: str = row(
        "name",
        "",
        "1: every message carries a CRC-32C of its payload, on all transports; a wrong one is an error. Between GPUs: "
        "every message that goes over the network. oracle: that, and every collective of a program is computed a "
        "second way on the host; the first result that differs is an error. oracle:N: each call's every Nth execution.",
        kinds.checks,
        shared=True,
    )
    nan_check: str = row(
        "name",
        "",
        "warn or error: look for NaN and infinity in what every collective moves or reduces, and in what reductions "
        "and their epilogues give; the first rank that holds one is named with the call, once per call in the log, or "
        "as the call's error.",
        kinds.one_of("warn", "error"),
        engines="CPU",
    )
    faults: tuple[str, ...] = row(
        "list",
        (),
        "For tests: faults injected into messages between processes, as shares of all messages (drop=, delay=, "
        "duplicate=, truncate=, corrupt=; on sockets also reorder=, reset=), chosen by seed=; delay_us= is the longest "
        "delay; data_only=1 excludes the control connections.",
        kinds.faults,
    )
