"""What the processes of a job run, and its place in a job over several hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.launcher.failure_report import Report
    from jaxring.launcher.streams import Stream


class Command(NamedTuple):
    """What a process runs: `argv` of the descriptor to which it writes its report (`jaxring.launcher.failure_report`).

    `lifeline`: its standard input is a pipe that is at its end when this launcher has ended.
    """

    argv: Callable[[int], Sequence[str]]
    env: dict[str, str]
    lifeline: bool = False


class HostPart(NamedTuple):
    """What a launcher has to do with a job over several hosts; the defaults are those of a job on one host.

    ``first``: the number of its first process. ``hosts``: the names of the hosts, where its processes are their
    launchers. ``tell(rank, report)`` hands on what a process reports, to the launcher that has started this one.
    ``listen(sink, then)`` makes the stream for the standard error of a host's launcher: reports in it go to ``then``,
    the rest to ``sink``. ``until_input_ends``: the job ends when standard input does, because the launcher that has
    started this one is gone.
    """

    first: int = 0
    hosts: Sequence[str] = ()
    tell: Callable[[int, Report], None] | None = None
    listen: Callable[[BinaryIO, Callable[[Report], None]], Stream] | None = None
    until_input_ends: bool = False


class Input:
    """Standard input, which says nothing and ends with the launcher that has started this one."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def feed(self, data: bytes) -> None:
        """What it says means nothing."""

    def end(self) -> None:
        """End the job as Ctrl-C does."""
        self._then()
