"""The flight records of a job's processes on all hosts, which answer who holds the job's viewing key."""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError, JoinError
from jaxring.runtime.reporting import viewing
from jaxring.trace import flight

if TYPE_CHECKING:
    import pathlib

    from jaxring.trace.flight import Flight

# How long a process may take to answer, and how many are asked at a time.
_ANSWER_S, _AT_ONCE = 10.0, 16


class Remote:
    """A job, by the file that `jaxring top --share` writes. Raises JaxringError where it cannot be read."""

    def __init__(self, path: pathlib.Path) -> None:
        try:
            self._access = viewing.decode(path.read_bytes())
        except OSError as error:
            raise JaxringError(f"Cannot read {path}: {error.strerror}.") from error
        except ValueError as error:
            raise JaxringError(f"{path} was not written by `jaxring top --share`: {error}.") from None
        self._all: viewing.Access | None = None
        self.job = self._access.job

    def look(self) -> tuple[list[Flight], int, list[str]]:
        """The records by process, the moment by the first one's clock (ns since 1970), and which do not answer.

        JaxringError where the first look finds nobody; no records where a later one does.
        """
        first = self._all is None
        deadline = time.monotonic() + _ANSWER_S
        if self._all is None or len(self._all.processes) < 2:
            self._all = viewing.members(self._access, deadline)
        found: list[tuple[Flight, int]] = []
        failed: list[str] = []
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = {
                p: pool.submit(viewing.look, self._all, p, "record", deadline) for p in sorted(self._all.processes)
            }
            for process, future in asked.items():
                try:
                    data, now = future.result()
                    found.append((flight.parse(data), now))
                except (JoinError, ValueError) as error:
                    failed.append(f"process {process}: {error}")
        if first and not found:
            raise JaxringError(failed[0] if failed else f"Job {self.job} has no process.")
        return [each for each, _ in found], found[0][1] if found else 0, failed
