"""Time collectives against their peers, in one run, taking turns.

    jaxring bench all_reduce -n 2x1 -b 4 -e 64M -f 4 --peers xla,gloo,mpi

Options and columns are those of nccl-tests, but for -n, which is processes x devices. Peers that are not installed are
named and left out. A time is the median over the iterations (batches of short ones) of the slowest rank's; the ratio
is the peer's to ours. Exits with 1 where a result is wrong. A size is the bytes of the larger of a rank's operand and
result; what one rank has for another in an all_to_all of n ranks is an n-th of it.

    jaxring bench all_to_all -n 4x2 --hosts 4 --env JAXRING_ALGO=pxn --peers jaxring:JAXRING_ALGO=direct

compares two algorithms: behind a peer's name may stand a variable that its processes alone have.

    jaxring bench all_reduce -n 4x1 --hosts 4 --rate 1gbit -b 4 -e 64M --peers gloo,mpi

the same over TCP, between hosts that are network namespaces with shaped links; iperf3 tells what a link carries.

    srun jaxring bench --job all_reduce -b 4 -e 64M

measures the job that it is started in, by srun, mpirun or anything else that `jax.distributed.initialize()` knows, with
its processes, hosts and devices as they are; process 0 prints. Peers are jaxring and gloo (XLA's collectives there).

    jaxring bench --program fsdp,fft -n 2x2 -b 64K -e 4M -f 64 --peers gloo

times whole programs, plain `jax.jit` over sharded arrays, under `jaxring.install(whole_program=True)` and without: XLA
inserts the collectives. The choice says how many of them are whose. --program without names measures all of them.
With --alone only these collectives run, each after the other, and the whole list --chain times in one program.

    jaxring bench --tuner -n 2x1 -n 4x1

calibrates a profile from nothing, as `jaxring tune` does, measures all candidates of all collectives anew, and says how
often the tuner's choice was within 10% of the best one. It exits with 1 where that is less than 90%. This machine's
profile stays as it is. With --import chain --algorithm chain an algorithm of your own is measured, too, and the choices
may take it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
from typing import TYPE_CHECKING

from jaxring import _command
from jaxring.bench import peers, work
from jaxring.bench.programs import PROGRAMS, Program
from jaxring.cli import arguments as types
from jaxring.cli import modules, pictures
from jaxring.errors import JaxringError
from jaxring.plan import dtypes
from jaxring.plan.collectives import COLLECTIVES
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from jaxring.bench.hosts import Hosts
    from jaxring.bench.in_job import Members
    from jaxring.bench.run import Job, Result

_STDOUT = pathlib.Path("-")
_LAYOUT = (1, 8)
HELP = "time collectives against XLA, Gloo, MPI and others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring bench`."""
    add = parser.add_argument
    collective = types.one_of("collective", work.COLLECTIVES)
    add("collectives", nargs="*", type=collective, metavar="COLLECTIVE", help=", ".join(work.COLLECTIVES))
    help_ = f"whole programs, whose collectives XLA inserts (default: all): {', '.join(PROGRAMS)}"
    add("--program", dest="programs", nargs="?", default="", const=",".join(PROGRAMS), metavar="LIST", help=help_)
    add("--alone", action="store_true", help="of these programs only the collectives, without compute")
    add("--tuner", action="store_true", help="how near the tuner's choices are to the best candidates")
    modules.add_own(parser)
    add("--job", action="store_true", help="measure the job that this process is part of, instead of starting one")
    add("-n", dest="jobs", type=types.layout, action="append", metavar="PxD", help="processes x devices (default: 1x8)")
    help_ = "smallest size in bytes, with K, M or G (default: 4)"
    add("-b", dest="begin", type=types.nbytes, default="4", metavar="SIZE", help=help_)
    add("-e", dest="end", type=types.nbytes, default="16M", metavar="SIZE", help="largest size (default: 16M)")
    add("-f", dest="factor", type=types.positive, default=4, metavar="N", help="factor between sizes (default: 4)")
    add("-d", dest="dtype", type=types.dtype, default="float32", metavar="TYPE", help="data type (default: float32)")
    operation = types.one_of("operation", work.OPERATIONS, types.OPERATIONS)
    help_ = f"operation of reductions: {', '.join(work.OPERATIONS)} (default: sum)"
    add("-o", dest="op", type=operation, default="sum", metavar="OP", help=help_)
    add(
        "-w",
        dest="warmup",
        type=types.positive,
        default=5,
        metavar="N",
        help="iterations that do not count (default: 5)",
    )
    add(
        "--iters",
        type=types.positive,
        default=40,
        metavar="N",
        help="iterations, or batches of 1 ms, that count (default: 40)",
    )
    add("-r", dest="repeat", type=types.positive, default=1, metavar="N", help="run it all so many times (default: 1)")
    add("-c", dest="check", type=int, choices=(0, 1), default=1, help="check results (default: 1)")
    add("--in-place", choices=("no", "yes", "both"), default="no", help="donate operands to results (default: no)")
    add(
        "--chain", type=types.positive, default=1, metavar="N", help="dependent collectives in one program (default: 1)"
    )
    add(
        "--peers",
        default="xla,gloo,mpi",
        metavar="LIST",
        help="what else is measured: PEER or PEER:NAME=VALUE (default: xla,gloo,mpi)",
    )
    add("--hosts", type=int, default=0, metavar="N", help="on N hosts, made of network namespaces (needs root)")
    add("--rate", default="", metavar="RATE", help="of every host's link, as 1gbit (default: not shaped)")
    add("--congestion", default="", metavar="NAME", help="TCP's congestion control on those hosts (default: as here)")
    add("--links", type=types.positive, default=1, metavar="N", help="networks that join the hosts (default: 1)")
    help_ = "set for the processes of all peers"
    add("--env", type=types.variable, action="append", default=[], metavar="NAME=VALUE", help=help_)
    help_ = "write every time that was measured; -: to stdout, and the tables to stderr"
    add("--json", type=pathlib.Path, metavar="FILE", help=help_)
    help_ = "write the tables' rows as comma-separated values; -: to stdout, and the tables to stderr"
    add("--csv", type=pathlib.Path, metavar="FILE", help=help_)
    add("--plot", type=pathlib.Path, metavar="FILE", help="write a plot of busbw and time over size")
    for name in ("--suite", "--out", "--limit", "--stages"):  # for one release: they say where they have gone
        add(name, help=argparse.SUPPRESS)
    parser.set_defaults(error=parser.error)
    add("--compare", type=pathlib.Path, metavar="FILE", help="compare with an older --json file")


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Raises JaxringError for what cannot be measured.

    At Ctrl-C, SIGTERM or SIGHUP what there is yet is reported. In a job that was there before (--job) SIGTERM is JAX's.
    """
    if any((arguments.suite, arguments.out, arguments.limit, arguments.stages)):
        raise JaxringError(
            "The suites are part of jaxring's repository and no longer of the package: in a checkout, run "
            "`python -m benchmarks.cpu --out DIR` or `python -m benchmarks.gpu --out DIR`."
        )
    if not arguments.collectives and not arguments.programs and not arguments.tuner:
        raise JaxringError("Name a collective, such as all_reduce, or --program, or --tuner.")
    _check(arguments)
    if arguments.job:
        return _in_job(arguments)
    with _command.ended_as_by_interrupt():
        return _tuner(arguments) if arguments.tuner else _bench(arguments, None)


def _in_job(arguments: argparse.Namespace) -> int:
    from jaxring.bench.in_job import Members

    if arguments.tuner or arguments.programs or arguments.jobs or arguments.hosts or arguments.env:
        raise JaxringError(
            "--job measures collectives in the job as it is, without --tuner, --program, -n, --hosts, --env."
        )
    members = Members()
    if members.process:
        members.serve()
        return 0
    try:
        return _bench(arguments, members)
    finally:
        members.end()


def _bench(arguments: argparse.Namespace, members: Members | None) -> int:
    from jaxring.bench import report
    from jaxring.bench.table import width_of

    try:
        older = report.load(arguments.compare) if arguments.compare else []
    except (OSError, ValueError) as error:
        raise JaxringError(f"--compare: {error}") from None
    # stdout is for one of them.
    out = sys.stderr if _STDOUT in (arguments.json, arguments.csv) else sys.stdout
    measured: list[tuple[list[Result], float]] = []
    try:
        _measure(arguments, out, measured, members)
    finally:
        # Ctrl-C, or a peer that breaks, does not take what has been measured.
        everything = [result for results, _ in measured for result in results]
        if arguments.json and measured:
            path = None if arguments.json == _STDOUT else arguments.json
            command = ["jaxring", "bench", *sys.argv[2:]]
            report.save(path, everything, _copy_gbs(measured), command)
        if arguments.csv and measured:
            path = None if arguments.csv == _STDOUT else arguments.csv
            report.save_csv(path, [results for results, _ in measured], _copy_gbs(measured))
    if arguments.plot:
        report.plot(arguments.plot, everything)
    if older:
        print("\n".join(["", *report.compare(older, everything, width_of(out))]), file=out)
    wrong = [result for result in everything if result.wrong and peers.is_ours(result.peer)]
    for result in wrong:
        where = f"{report.title(result)}, {shown(result.case.nbytes)}, {result.peer}"
        print(f"jaxring bench: {result.wrong} elements are wrong: {where}", file=sys.stderr)
    return int(bool(wrong))


def _copy_gbs(measured: Sequence[tuple[list[Result], float]]) -> float:
    """The machine's copy bandwidth: the median over the cases."""
    return statistics.median(copy_gbs for _, copy_gbs in measured)


def _tuner(arguments: argparse.Namespace) -> int:
    from jaxring.bench.tuning import cell
    from jaxring.bench.tuning.calibrate import hosts_of
    from jaxring.bench.tuning.near_best import check

    count = arguments.hosts or 1
    layouts = [cell.Layout(processes, devices, count) for processes, devices in arguments.jobs or [_LAYOUT]]
    own = modules.own(arguments)
    cell.check(layouts, own)
    with hosts_of(count, arguments.rate) as hosts:
        if hosts is not None:
            print(hosts.describe())
        lines, near = check(layouts, work.sizes(arguments.begin, arguments.end, arguments.factor), hosts, own)
    print("\n".join(lines))
    return int(not near)


def _check(arguments: argparse.Namespace) -> None:
    """JaxringError for what would fail in the middle of the measurements, or after them."""
    for name in _programs(arguments):
        if name not in PROGRAMS:
            raise JaxringError(f"--program {name}: use {', '.join(PROGRAMS)}.")
    if any(COLLECTIVES[name].reduces for name in arguments.collectives):
        try:
            dtypes.check(arguments.op, arguments.dtype)
        except TypeError as error:
            raise JaxringError(f"{error}.") from None
    if arguments.alone and not arguments.programs:
        raise JaxringError("--alone is of --program: add it, or leave --alone out.")
    if (arguments.modules or arguments.own) and not arguments.tuner:
        raise JaxringError("--import and --algorithm are of --tuner: add it, or leave them out.")
    if arguments.json == arguments.csv == _STDOUT:
        raise JaxringError("--json - and --csv -: stdout is for one of them.")
    pictures.check(arguments.plot)
    if arguments.hosts and any(processes % arguments.hosts for processes, _ in arguments.jobs or [_LAYOUT]):
        raise JaxringError(f"{arguments.hosts} hosts cannot share the processes of every -n equally.")


def _measure(
    arguments: argparse.Namespace, out: TextIO, measured: list[tuple[list[Result], float]], members: Members | None
) -> None:
    """Adds a case's results, and the machine's copy bandwidth, to ``measured`` as soon as they are made."""
    from jaxring.bench import live_rows
    from jaxring.bench.run import Job

    names = peers.with_ours(name for name in arguments.peers.split(",") if name)
    environment = dict(arguments.env)
    if dtypes.element_bytes(arguments.dtype) >= 8 and arguments.dtype != "complex64":
        environment.setdefault("JAX_ENABLE_X64", "1")  # JAX would measure the type of half the size
    sizes = work.sizes(arguments.begin, arguments.end, arguments.factor)
    with _hosts(arguments, environment) or contextlib.nullcontext() as made:
        if made is not None:
            print(made.describe(), file=out)
        layouts = [(members.count, members.devices)] if members else arguments.jobs or [_LAYOUT]
        for processes, devices in layouts:
            job = Job(processes, devices, names, environment, made, members)
            live_rows.left_out(out, job)
            for served, cases in _work(arguments, job, sizes, out):
                live_rows.run(
                    out, served, cases, arguments.iters, arguments.warmup, bool(arguments.check), measured.append
                )


def _work(
    arguments: argparse.Namespace, job: Job, sizes: Sequence[int], out: TextIO
) -> Iterator[tuple[Job, list[work.Case | Program]]]:
    """The cases of each collective and program, and the job with the peers that run them."""
    inplace = {"no": (False,), "yes": (True,), "both": (False, True)}[arguments.in_place]
    for collective in arguments.collectives * arguments.repeat:
        yield (
            job,
            [
                work.Case(collective, arguments.op, arguments.dtype, nbytes, place, arguments.chain)
                for nbytes in sizes
                for place in inplace
                if not place or collective not in ("all_gather", "reduce_scatter")
            ],
        )
    if not arguments.programs:
        return
    others = [name for name in job.peers if not peers.find(name).runs_programs]
    for name in others:
        print(f"{name}: left out of --program, which are programs of JAX", file=out)
    served = dataclasses.replace(job, peers=tuple(name for name in job.peers if name not in others))
    for program in _programs(arguments) * arguments.repeat:
        chain = arguments.chain if arguments.alone else 1
        yield served, [Program(program, nbytes, chain=chain, alone=arguments.alone) for nbytes in sizes]


def _programs(arguments: argparse.Namespace) -> list[str]:
    return [name for name in arguments.programs.split(",") if name]


def _hosts(arguments: argparse.Namespace, environment: dict[str, str]) -> Hosts | None:
    """The hosts that were asked for, to be entered."""
    from jaxring.bench.hosts import Hosts

    if not arguments.hosts:
        return None
    if arguments.links > 1:
        interfaces = ",".join(Hosts.device(network) for network in range(arguments.links))
        environment.setdefault("JAXRING_SOCKET_IFNAME", interfaces)
    return Hosts(arguments.hosts, arguments.links, arguments.rate, arguments.congestion)
