"""Who a process is, what it installs, and how long it waits for others."""

from __future__ import annotations

import dataclasses

from jaxring.settings import kinds
from jaxring.settings.row import row


@dataclasses.dataclass(frozen=True)
class Job:
    """An identity, what is installed, and deadlines in seconds."""

    hostid: str = row("text", "", "This host's identity, instead of the detected one.", kinds.text_line, nccl=True)
    timeout: float = row(
        "seconds",
        300.0,
        "Longest wait for a peer to reach a collective, and within it. On GPUs, where a launch that gives up ends the "
        "process's use of its GPU, a launch waits 1800 s unless this or the call says another time.",
        kinds.seconds,
    )
    join_timeout: float = row(
        "seconds",
        60.0,
        "Longest wait for a link to a peer that has joined, and in `jaxring.shrink` for a process that does not call.",
        kinds.seconds,
    )
    stall_warning: float = row(
        "seconds",
        10.0,
        "When to warn of a collective that waits for others: after this time, after six times this time, and then "
        "whenever thirty times this time have passed; 0: never.",
        kinds.seconds_or_never,
        engines="CPU",
    )
    link_timeout: float = row(
        "seconds",
        10.0,
        "How long another host may acknowledge nothing before it counts as unreachable (TCP_USER_TIMEOUT and keepalive "
        "of the control connections).",
        kinds.seconds,
    )
    install: str = row(
        "name",
        "",
        "What is installed when JAX starts its backends, or when jaxring is imported before, for unchanged scripts: "
        "lax: `jaxring.install()`, for CPUs; whole: `jaxring.install(whole_program=True)`, which serves GPUs, too; "
        "empty: nothing.",
        kinds.one_of("lax", "whole"),
        shared=True,
    )

    @property
    def come_timeout(self) -> float:
        """Longest wait for a peer to reach its first collective, or `rebuild`."""
        return max(self.timeout, self.join_timeout)
