"""Finds which process of a job failed first, and how the others ended.

A failure is known from a process's report of the exception that ends its script, or from its wait status. Where one
process's end is the cause of another's exception, the report of the latter may be read before the former's wait status:
the kernel closes a dying process's sockets before its parent can wait for it. So when a report has been read, processes
that are in the kernel's exit path without a report of their own are waited for, and count as earlier.
"""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from typing import TYPE_CHECKING

from jaxring.launcher.failure_report import INTERRUPTED, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PF_EXITING = 0x4


@dataclasses.dataclass(frozen=True)
class Failure:
    """How process `rank` failed: by an exception, with a report, or with this wait status (-n: by signal n).

    `host` is that of a launcher, which is then what failed.
    """

    rank: int
    status: int
    report: Report | None
    host: str = ""

    @property
    def who(self) -> str:
        """The process, or host."""
        return f"host {self.host}" if self.host else f"process {self.rank}"

    @property
    def code(self) -> int:
        """The exit code that a shell would show."""
        if self.report is not None:
            return self.report.code
        return 128 - self.status if self.status < 0 else self.status

    def cause(self) -> str:
        """What ended it."""
        if self.report is not None:
            return str(self.report)
        return f"ended by {signal.Signals(-self.status).name}" if self.status < 0 else f"exit code {self.status}"

    def __str__(self) -> str:
        """A sentence."""
        if self.report is not None and self.report.kind:
            return f"{self.who} failed: {self.report}"
        return f"{self.who} " + ("was " if self.status < 0 else "failed with ") + self.cause()


class Failures:
    """The failures of a job. `first` is the one that the others follow, None until that is known.

    `hosts` are the names of those whose launchers the processes are, if they are.
    """

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        self._hosts = hosts
        self.first: Failure | None = None
        self._reports: dict[int, Report] = {}
        self._silent: list[Failure] = []
        self._later: dict[int, Failure] = {}
        self._ended: list[int] = []
        self._suspects: set[int] | None = None

    def echoes(self) -> list[int]:
        """Whose reports another's failure may be the cause of."""
        return [rank for rank, report in self._reports.items() if report.echo]

    def undecided(self) -> bool:
        """Whether a process has failed and the first failure is not known yet."""
        return self.first is None and bool(self._reports or self._silent)

    def reported(self, rank: int, report: Report) -> None:
        """The script of this process has ended by an exception; the process may live on for a while.

        A host's launcher hands on the reports of several processes: the first one counts that is no echo of another's.
        """
        known = self._reports.get(rank)
        if known is None or (self.first is None and known.echo and not report.echo):
            self._reports[rank] = report

    def unreported(self, rank: int) -> None:
        """The process is started again."""
        self._reports.pop(rank, None)

    def failure(self, rank: int, status: int) -> Failure:
        """How the process that ended with `status` failed."""
        return Failure(rank, status, self._reports.get(rank), self._host(rank))

    def ended(self, rank: int, status: int, by_launcher: bool) -> None:
        """The process has ended, of itself or by a signal of the launcher's."""
        if not status or rank in self._reports:
            return
        if by_launcher:
            self._ended.append(rank)
        elif self.first is None:
            self._silent.append(self.failure(rank, status))
        else:
            self._later[rank] = self.failure(rank, status)

    def decide(self, alive: Mapping[int, int], deferred: Iterable[int] = ()) -> Failure | None:
        """The first failure, once: when it becomes known. `alive`: the pids of the processes that are not reaped.

        The reports of the processes in `deferred` count when they have ended.
        """
        if not self.undecided():
            return None
        reports = {rank: report for rank, report in self._reports.items() if rank not in set(deferred)}
        if not reports and not self._silent:
            return None
        if self._suspects is None:
            # By pid: one of them may be started again.
            self._suspects = {pid for rank, pid in alive.items() if rank not in self._reports and is_exiting(pid)}
        self._suspects &= set(alive.values())
        if self._suspects:
            return None
        if self._silent:
            self.first, *rest = self._silent
            self._later |= {failure.rank: failure for failure in rest}
        else:
            rank, report = min(reports.items(), key=lambda item: item[1].when)
            self.first = Failure(rank, report.code, report, self._host(rank))
        return self.first

    def summary(self) -> str | None:
        """A sentence about the first failure and those that followed it; None where none did."""
        first = self.first
        if first is None:
            return None
        later = self._later | {rank: Failure(rank, r.code, r, self._host(rank)) for rank, r in self._reports.items()}
        others = [failure for rank, failure in sorted(later.items()) if rank != first.rank]
        same = [failure.rank for failure in others if failure.report and failure.cause() == first.cause()]
        echoes = [failure.rank for failure in others if failure.rank not in same and _is_echo(failure)]
        parts = [
            f"{self._listed(same)} failed in the same way" if same else "",
            f"{self._listed(echoes)} {'failed, too' if _is_echo(first) else 'failed because of it'}" if echoes else "",
            *(
                f"{failure.who} failed after it: {failure.cause()}"
                for failure in others
                if failure.rank not in same + echoes
            ),
            f"{self._listed(self._ended)} had to be ended" if self._ended else "",
        ]
        said = [part for part in parts if part]
        return f"{first.who} failed first: {'; '.join([first.cause(), *said])}" if said else None

    def interrupted(self) -> str:
        """A sentence about Ctrl-C: where it reached the scripts, as far as they have reported it."""
        places: dict[str, list[int]] = {}
        others = []
        for rank, report in sorted(self._reports.items()):
            if report.code != INTERRUPTED:
                others.append(str(Failure(rank, report.code, report, self._host(rank))))
            elif report.where:
                places.setdefault(report.where, []).append(rank)
        each: list[str] = []
        for place, ranks in places.items():
            verb = "" if each else "was " if len(ranks) == 1 else "were "
            each.append(f"{self._listed(ranks)} {verb}at {place}")
        return "; ".join(filter(None, ["interrupted", ", ".join(each), *others]))

    def _host(self, rank: int) -> str:
        return self._hosts[rank] if self._hosts else ""

    def _listed(self, ranks: Iterable[int]) -> str:
        names = [self._host(rank) or str(rank) for rank in sorted(ranks)]
        one, several = ("host", "hosts") if self._hosts else ("process", "processes")
        return f"{one} {names[0]}" if len(names) == 1 else f"{several} {', '.join(names[:-1])} and {names[-1]}"


def is_exiting(pid: int) -> bool:
    """Whether this child, not reaped yet, is on its way out in the kernel, or a zombie."""
    try:
        fields = (
            pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return False
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def _is_echo(failure: Failure) -> bool:
    # JAX's client of the coordination service aborts its process when another one is lost.
    return failure.report.echo if failure.report is not None else failure.status == -signal.SIGABRT
