"""Groups the records of living processes by job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError
from jaxring.runtime.reporting import record_files, viewing
from jaxring.trace import flight

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.trace.flight import Flight


@dataclasses.dataclass(frozen=True)
class Living:
    """The record of a living process, its path, and the process's user."""

    pid: int
    uid: int
    path: pathlib.Path
    flight: Flight

    def job(self) -> str:
        """The job's name; a process without jax.distributed is a job of its own."""
        return self.flight.job or f"process {self.pid}"


def living(pids: list[int] | None = None) -> list[Living]:
    """The records of these processes, or of all processes whose records this user may read."""
    found = []
    for pid, path in record_files.find(pids):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            uid = pathlib.Path(f"/proc/{pid}").stat().st_uid
            found.append(Living(pid, uid, path, flight.parse(path.read_bytes())))
    return found


def look(job: str | None) -> list[Living]:
    """The records of that job's processes on this host, or of the only one of this user's: see `of` and `only`."""
    records = living()
    return only(records) if job is None else of(records, job)


def of(records: Sequence[Living], job: str) -> list[Living]:
    """The records of that job: its name, or the pid of one of its processes or of one that has started them.

    Jobs in containers or network namespaces of one host may have coordinators of the same address, and so the same
    name. By a pid, processes whose key is another job's are left out; by the name, JaxringError says that there are
    several.
    """
    if job.isdecimal():
        names = {record.job() for record in records if record.pid == int(job) and _takes_part(record)}
        keys = {access.key for access in viewing.accesses(int(job))} if names else set()
        found = [r for r in records if _takes_part(r) and (r.job() in names or int(job) in _ancestors(r.pid))]
        return [record for record in found if _may_have(record.pid, keys)]
    return _of_one([record for record in records if record.job() == job])


def only(records: Iterable[Living]) -> list[Living]:
    """The records of this user's job. Raises JaxringError where there are several, also of one name (see `of`).

    A process that has merely imported jaxring, as a job's launcher has, is in none.
    """
    found: dict[str, list[Living]] = {}
    for record in records:
        if _takes_part(record) and record.uid == os.geteuid():
            found.setdefault(record.job(), []).append(record)
    if len(found) > 1:
        jobs = "; ".join(f"{job} (pids {', '.join(str(r.pid) for r in of_it)})" for job, of_it in found.items())
        raise JaxringError(f"There are {len(found)} jobs: choose one of them by --job, or processes by pid: {jobs}.")
    return _of_one([record for of_it in found.values() for record in of_it])


def _of_one(records: list[Living]) -> list[Living]:
    """The records of one name. Raises JaxringError where they are of several jobs: where two processes of the same
    number have records of their own, and no key in common.

    Keys alone do not say so, since each epoch of a job has its own: a process that the others have left out
    (jaxring.shrink) keeps the old one, and is not refused.
    """
    by_process: dict[int, list[Living]] = {}
    for record in records:
        by_process.setdefault(record.flight.process, []).append(record)
    doubles = [record for same in by_process.values() if len(same) > 1 for record in same]
    # A fork has its parent's record, and the key of the epoch in which it was made.
    keys: dict[tuple[int, ...] | int, set[bytes]] = {}
    for record in doubles:
        keys.setdefault(_file(record), set()).update(access.key for access in viewing.accesses(record.pid))
    several = _meeting(filter(None, keys.values()))
    places = {
        r.pid: next(i for i, each in enumerate(several) if known <= each) for r in doubles if (known := keys[_file(r)])
    }
    if any(len({places[r.pid] for r in same if r.pid in places}) > 1 for same in by_process.values()):
        pids: dict[int, list[str]] = {}
        for record in doubles:
            if record.pid in places:
                pids.setdefault(places[record.pid], []).append(str(record.pid))
        each = "; ".join(f"pids {', '.join(of_it)}" for of_it in pids.values())
        raise JaxringError(
            f"{len(pids)} jobs are called {records[0].job()}: choose one by --job and the pid of one of its "
            f"processes: {each}."
        )
    return records


def _file(record: Living) -> tuple[int, ...] | int:
    """The same for all processes that hold this record; of a process that has ended meanwhile its pid."""
    try:
        status = record.path.stat()
    except OSError:
        return record.pid
    return status.st_dev, status.st_ino


def _meeting(sets: Iterable[set[bytes]]) -> list[set[bytes]]:
    """The sets, with those that have a key in common, or with one between them, made one."""
    found: list[set[bytes]] = []
    for each in sets:
        apart = [other for other in found if other.isdisjoint(each)]
        found = [*apart, each.union(*(other for other in found if other not in apart))]
    return found


def _may_have(pid: int, keys: set[bytes]) -> bool:
    """Whether a process may be of the job of these keys: a process that has met nobody yet has none."""
    found = {access.key for access in viewing.accesses(pid)} if keys else set()
    return not found or not found.isdisjoint(keys)


def _takes_part(record: Living) -> bool:
    return bool(record.flight.job or record.flight.records)


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        while pid > 1 and pid not in found:
            found.add(pid)
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return found
