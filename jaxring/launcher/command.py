"""What the processes of a job run, and its place in a job over several hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.launcher.report import Report
    from jaxring.launcher.streams import Stream


class Command(NamedTuple):
    """What a process runs: `argv` of the descriptor to which it writes its report (`jaxring.launcher.report`).

    `lifeline`: its standard input is a pipe that is at its end when this launcher has ended.
    """

    argv: Callable[[int], Sequence[str]]
    env: dict[str, str]
    lifeline: bool = False


class Over(NamedTuple):
    """A job that is part of one over hosts: the number of its first process, the names of the hosts whose launchers it
    starts, what hears of reports, and whether it ends when its standard input does, as such launchers do."""

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
