"""Look at flight records: the last 4096 operations of each process, with their states and times.

    jaxring trace dump -o FOLDER [PID ...]   copies the records of the processes of a job that lives
    jaxring trace diff FILE FILE ...         shows which process is behind, in which operation, and which is missing
    jaxring trace slow FILE FILE ...         shows what each call takes, and the time lost waiting and for whom
    jaxring trace view FILE ... -o OUT.json  makes a timeline for ui.perfetto.dev
    jaxring trace replay FOLDER              plays the operations that failed again, and says what was wrong

A process keeps its record in memory, which goes with it; one that ends by an error after a collective has failed leaves
a copy in the temporary folder, where the last 20 copies stay, and says so. With JAXRING_TRACE_DIR=FOLDER the record is
a file there from the start, always up to date, that stays when the process is killed. Gather the hosts' files before
`diff`, `slow`, `view` and `replay`. With JAXRING_SAVE_OPERANDS=BYTES, too, the operands of operations that fail are
saved beside it; they are the program's data.
"""

from __future__ import annotations

import json
import pathlib
import socket
from typing import TYPE_CHECKING

from jaxring.cli import modules
from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jaxring.trace.flight import Flight

HELP = "dump, compare, sum up and view the flight records of processes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring trace`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    dump = actions.add_parser(
        "dump",
        help="copy the records of processes that live",
        description="Copies the flight records of this host's processes of a job that lives, into a folder, and prints "
        "the names of the files. Exit status: 1 where there is no such process.",
    )
    dump.add_argument(
        "pids", nargs="*", type=int, metavar="PID", help="processes of this host (default: those of --job)"
    )
    dump.add_argument(
        "--job",
        metavar="JOB",
        help="the job: its coordinator's address, the pid of one of its processes, or of its launcher (default: the "
        "only job of this user on this host)",
    )
    dump.add_argument(
        "-o", dest="folder", default=".", metavar="FOLDER", help="where to, made if need be (default: here)"
    )
    diff = actions.add_parser(
        "diff",
        help="show which process is behind",
        description="Shows which process is behind. Exit status: 0 where all operations have ended well in all "
        "processes of the job, 1 where some have not or a process has no record here.",
    )
    slow = actions.add_parser(
        "slow",
        help="show what each call takes, and the time lost waiting",
        description="Shows for each call of the program, those that took most of the time first: how often it was "
        "executed, the bytes of a rank's input, the median and the 99th percentile of the time from launch to end, and "
        "GB/s as nccl-tests counts them; and how long processes have waited for others to launch it, in all, with the "
        "process for which they have waited longest. Waits are seen where the records of several processes are given, "
        "and count where they are longer than the clocks may differ. A record has the last 4096 operations.",
    )
    view = actions.add_parser(
        "view",
        help="make a timeline for Perfetto",
        description="Makes a timeline of all operations in the records, with the tracks of each process, for "
        "ui.perfetto.dev, and prints the name of its file.",
    )
    for action in (diff, slow, view):
        action.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="flight records")
    help_ = "print JSON: the sentences, the operation, who has begun it and who is behind, and who holds the others up"
    diff.add_argument("--json", action="store_true", help=help_)
    slow.add_argument("--json", action="store_true", help="print JSON: an entry for each call; times in us")
    dump.add_argument("--json", action="store_true", help="print JSON: the files and the processes' pids")
    view.add_argument("--json", action="store_true", help="print JSON: the timeline's file, and whose records it has")
    replay = actions.add_parser(
        "replay",
        help="play the operations that failed again, from saved operands",
        description="Plays the operations that failed again, in one process, from the operands that "
        "JAXRING_SAVE_OPERANDS has saved, and says what was wrong. Exit status: 1 where nothing is saved.",
    )
    replay.add_argument("--json", action="store_true", help="print JSON: each operation, and the sentences about it")
    replay.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="what JAXRING_TRACE_DIR was")
    modules.add_argument(replay)
    view.add_argument("-o", dest="out", type=pathlib.Path, required=True, metavar="OUT.json", help="the timeline")


def run(arguments: argparse.Namespace) -> int:
    """Do it. Raises JaxringError for files that are no records, and where there is nothing to dump."""
    if arguments.action == "dump":
        return _dump(arguments)
    if arguments.action == "replay":
        return _replay(arguments)
    from jaxring.trace import diff, flight, view  # dumping needs none of them

    flights = sorted((flight.read(path) for path in arguments.files), key=lambda f: (f.process, f.pid))
    if arguments.action == "diff":
        _of_one_job(flights)
        found = diff.compare(flights)
        print(json.dumps(found.as_json()) if arguments.json else "\n".join(found.sentences))
        return 0 if found.well else 1
    if arguments.action == "slow":
        _of_one_job(flights)
        return _slow(flights, arguments.json)
    arguments.out.write_text(json.dumps(view.timeline(flights)), encoding="utf-8")
    records = [{"process": one.process, "pid": one.pid, "host": one.host} for one in flights]
    print(json.dumps({"file": str(arguments.out), "records": records}) if arguments.json else arguments.out)
    return 0


def _slow(flights: Sequence[Flight], as_json: bool) -> int:
    from jaxring.cli import tables
    from jaxring.trace import slow

    found = slow.sites(flights)
    if as_json:
        print(json.dumps(slow.as_json(found)))
        return 0
    rows = [
        (
            site.what,
            site.executions,
            shown(site.nbytes),
            site.way,
            f"{site.median_us:.0f}",
            f"{site.p99_us:.0f}",
            f"{site.busbw:.2f}",
            f"{site.lost_us / 1e3:.1f}",
            f"{site.latest}: {site.latest_us / site.lost_us:.0%}" if site.latest else "",
        )
        for site in found
    ]
    columns = ("call", "times", "bytes", "way", "median us", "p99 us", "busbw GB/s", "waited ms", "for")
    title = f"Calls of {len(flights)} process{'es' * (len(flights) > 1)}"
    tables.console().print(tables.table(title, columns, rows, spare=("way", "busbw GB/s", "times")))
    return 0


def _of_one_job(flights: Sequence[Flight]) -> None:
    jobs: dict[str, list[str]] = {}
    for one in flights:
        if one.job:
            jobs.setdefault(one.job, []).append(str(one.pid))
    if len(jobs) > 1:
        listed = "; ".join(f"{job} (pids {', '.join(pids)})" for job, pids in jobs.items())
        raise JaxringError(
            f"These are records of {len(jobs)} jobs, by their coordinators: {listed}. Compare those of one."
        )


def _replay(arguments: argparse.Namespace) -> int:
    from jaxring.trace import operands, replay

    folder = arguments.folder
    modules.load(arguments.modules)
    found = operands.failures(folder)
    if not found:
        raise JaxringError(
            f"No operands are saved in {folder}: nothing failed, or JAXRING_SAVE_OPERANDS was not set or too small."
        )
    if arguments.json:
        said = [{"operation": failure.what, "sentences": list(replay.explain(failure))} for failure in found]
        print(json.dumps(said))
        return 0
    for failure in found:
        print("\n  ".join(replay.explain(failure)))
    return 0


def _dump(arguments: argparse.Namespace) -> int:
    from jaxring.runtime.reporting import record_files
    from jaxring.trace import jobs

    folder, pids, job = pathlib.Path(arguments.folder), arguments.pids, arguments.job
    if pids and job is not None:
        raise JaxringError("Give pids or --job, not both.")
    records = jobs.living(pids) if pids else jobs.look(job)
    written = []
    for record in records:
        target = folder / f"jaxring-{socket.gethostname()}-{record.pid}-{record.path.name}.trace"
        try:
            record_files.save(record.path, target)
        except OSError as error:
            whose = f"the record of process {record.pid}"
            raise JaxringError(f"Cannot save {whose} as {target}: {error.strerror}.") from error
        written.append({"file": str(target), "pid": record.pid})
        if not arguments.json:
            print(target)
    if not records:
        raise JaxringError(
            f"No process {f'of job {job} ' if job else ''}that this user may look into has a record in memory; with "
            "JAXRING_TRACE_DIR it is a file there."
        )
    if arguments.json:
        print(json.dumps(written))
    return 0
