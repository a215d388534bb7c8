"""Time collectives against their peers, in one run, taking turns.

    jaxring bench all_reduce -n 2x1 -b 4 -e 64M -f 4 --peers xla,gloo,mpi

Options and columns are those of nccl-tests, but for -n, which is processes x devices. Peers that are not installed are
named and left out. A time is the median over the iterations (batches of short ones) of the slowest rank's; the ratio
is the peer's to ours. Exits with 1 where a result is wrong. A size is the bytes of the larger of a rank's operand and
result; what one rank has for another in an all_to_all of n ranks is an n-th of it.

    jaxring bench all_to_all -n 4x2 --hosts 4 --env JAXRING_ALGO=pxn --peers jaxring:JAXRING_ALGO=direct

compares two algorithms: behind a peer's name may stand a variable that its processes alone have.

    jaxring bench --suite cpu --out DIR

makes the measurements of docs/benchmarks.md, which `python -m jaxring.bench.page DIR docs/benchmarks.md` writes.

    jaxring bench all_reduce -n 4x1 --hosts 4 --rate 1gbit -b 4 -e 64M --peers gloo,mpi

the same over TCP, between hosts that are network namespaces with shaped links; iperf3 tells what a link carries.

    jaxring bench --suite gpu --out DIR

builds the CUDA engine where it is not built, tests and measures it on this machine's GPU in under ten minutes. Exits
with 2 where there is no GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import sys
from typing import TYPE_CHECKING

from jaxring.bench import gpu_suite
from jaxring.cli.layout import layout
from jaxring.errors import JaxringError
from jaxring.sizes import size

if TYPE_CHECKING:
    import argparse

HELP = "time collectives against XLA, Gloo, MPI and others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring bench`."""
    add = parser.add_argument
    add("collectives", nargs="*", metavar="COLLECTIVE", help="all_reduce, all_gather, reduce_scatter, all_to_all, ...")
    add("-n", dest="jobs", type=layout, action="append", metavar="PxD", help="processes x devices (default: 1x8)")
    add("-b", dest="begin", default="4", metavar="SIZE", help="smallest size in bytes, with K, M or G (default: 4)")
    add("-e", dest="end", default="16M", metavar="SIZE", help="largest size (default: 16M)")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="factor between sizes (default: 4)")
    add("-d", dest="dtype", default="float32", metavar="TYPE", help="data type (default: float32)")
    add("-o", dest="op", default="sum", metavar="OP", help="operation of reductions (default: sum)")
    add("-w", dest="warmup", type=int, default=5, metavar="N", help="iterations that do not count (default: 5)")
    add("--iters", type=int, default=40, metavar="N", help="iterations, or batches of 1 ms, that count (default: 40)")
    add("-r", dest="repeat", type=int, default=1, metavar="N", help="run it all so many times (default: 1)")
    add("-c", dest="check", type=int, choices=(0, 1), default=1, help="check results (default: 1)")
    add("--in-place", choices=("no", "yes", "both"), default="no", help="donate operands to results (default: no)")
    add("--chain", type=int, default=1, metavar="N", help="dependent collectives in one program (default: 1)")
    add(
        "--peers",
        default="xla,gloo,mpi",
        metavar="LIST",
        help="who else is measured: PEER or PEER:NAME=VALUE (default: xla,gloo,mpi)",
    )
    add("--hosts", type=int, default=0, metavar="N", help="on N hosts, made of network namespaces (needs root)")
    add("--rate", default="", metavar="RATE", help="of every host's link, as 1gbit (default: not shaped)")
    add("--congestion", default="", metavar="NAME", help="TCP's congestion control on those hosts (default: as here)")
    add("--links", type=int, default=1, metavar="N", help="networks that join the hosts (default: 1)")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="set for the processes of all peers")
    add("--json", type=pathlib.Path, metavar="FILE", help="write every time that was measured")
    add("--plot", type=pathlib.Path, metavar="FILE", help="write a plot of busbw and time over size")
    add("--suite", choices=("cpu", "gpu"), help="a fixed list of measurements; gpu: builds and tests, too")
    gpu_suite.add_arguments(parser)
    add("--compare", type=pathlib.Path, metavar="FILE", help="compare with an older --json file")


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. Raises JaxringError for what cannot be measured."""
    if arguments.suite == "gpu":
        return gpu_suite.suite(arguments.out, arguments.limit, arguments.stages)
    if importlib.util.find_spec("rich") is None:
        raise JaxringError("The bench draws tables with rich: pip install 'jaxring[bench]'.")
    from jaxring.bench import cpu_suite, peers, report, show, work
    from jaxring.bench.hosts import Hosts
    from jaxring.bench.run import Job

    if arguments.suite == "cpu":
        return cpu_suite.suite(arguments.out, arguments.stages)
    if not arguments.collectives:
        raise JaxringError("Name a collective, such as all_reduce, or --suite cpu or gpu.")
    try:
        sizes = work.sizes(size(arguments.begin), size(arguments.end), arguments.factor)
        environment = dict(pair.split("=", 1) for pair in arguments.env)
        older = report.load(arguments.compare) if arguments.compare else []
    except ValueError as error:
        raise JaxringError(f"Not a size, NAME=VALUE or JSON file: {error}") from None
    names = peers.with_ours(name for name in arguments.peers.split(",") if name)
    if unknown := [name for name in arguments.collectives if name not in work.COLLECTIVES]:
        raise JaxringError(f"Unknown collective {unknown[0]!r}: use {', '.join(work.COLLECTIVES)}.")
    inplace = {"no": (False,), "yes": (True,), "both": (False, True)}[arguments.in_place]
    console = show.console()
    everything = []
    copies = []
    made = None
    if arguments.hosts:
        if any(processes % arguments.hosts for processes, _ in arguments.jobs or [(1, 8)]):
            raise JaxringError(f"{arguments.hosts} hosts cannot share the processes of every -n equally.")
        made = Hosts(arguments.hosts, arguments.links, arguments.rate, arguments.congestion)
        if arguments.links > 1:
            interfaces = ",".join(Hosts.device(network) for network in range(arguments.links))
            environment.setdefault("JAXRING_SOCKET_IFNAME", interfaces)
    with made or contextlib.nullcontext():
        if made is not None:
            console.print(made.describe(), highlight=False)
        for processes, devices in arguments.jobs or [(1, 8)]:
            job = Job(processes, devices, names, environment, made)
            show.left_out(console, job)
            for collective in arguments.collectives * arguments.repeat:
                cases = [
                    work.Case(collective, arguments.op, arguments.dtype, nbytes, place, arguments.chain)
                    for nbytes in sizes
                    for place in inplace
                    if not place or collective not in ("all_gather", "reduce_scatter")
                ]
                check = bool(arguments.check)
                results, copy_gbs = show.run(console, job, cases, arguments.iters, arguments.warmup, check)
                everything += results
                copies.append(copy_gbs)
    if arguments.json:
        report.save(arguments.json, everything, max(copies), sys.argv[2:])
    if arguments.plot:
        report.plot(arguments.plot, everything)
    if older:
        console.print(report.compare(older, everything))
    return int(any(result.wrong for result in everything if peers.is_ours(result.peer)))
