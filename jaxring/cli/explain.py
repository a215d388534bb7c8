"""Tell which algorithm and protocol a collective would take on a described job, and why; print its schedule.

    jaxring explain all_reduce -n 4x2 --hosts 2 -b 1M

Nothing is started: this is the planner's own decision, from the shape of the job. `jaxring.explain()` tells inside a
program what its collectives took, with the transports found. Costs are estimates that order the candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.cli.layout import layout
from jaxring.errors import JaxringError
from jaxring.plan import dtypes, tuner
from jaxring.plan.algorithms import build
from jaxring.plan.schedule import COLLECTIVES, Spec
from jaxring.plan.verify import verify
from jaxring.sizes import shown, size

if TYPE_CHECKING:
    import argparse

HELP = "tell which algorithm and protocol a collective takes, and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring explain`."""
    add = parser.add_argument
    add("collective", choices=COLLECTIVES, metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    add("-n", dest="job", type=layout, default=(1, 8), metavar="PxD", help="processes x devices (default: 1x8)")
    add("--hosts", type=int, default=1, metavar="N", help="hosts that share the processes equally (default: 1)")
    add("-b", dest="nbytes", default="1M", metavar="SIZE", help="input bytes of a rank, with K, M or G (default: 1M)")
    add("-d", dest="dtype", default="float32", metavar="TYPE", help="data type (default: float32)")
    add("--algorithm", metavar="NAME", help="ask for this algorithm")
    add("--protocol", metavar="NAME", help="ask for this protocol")
    add("--schedule", action="store_true", help="print the schedule, verified")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision. Raises JaxringError for a job that cannot be, or a choice that cannot serve."""
    processes, devices = arguments.job
    if arguments.hosts < 1 or processes % arguments.hosts:
        raise JaxringError(f"{processes} processes cannot be shared equally by {arguments.hosts} hosts.")
    placement = tuple(rank // devices for rank in range(processes * devices))
    hosts = tuple(process * arguments.hosts // processes for process in placement)
    try:
        nbytes = size(arguments.nbytes)
        dtypes.dtype_code(arguments.dtype)
        choice = tuner.choose(
            arguments.collective,
            placement,
            hosts,
            nbytes,
            arguments.dtype,
            algorithm=arguments.algorithm,
            protocol=arguments.protocol,
        )
    except (ValueError, TypeError) as error:
        raise JaxringError(f"{error}.") from None
    perm = tuple((rank, (rank + 1) % len(placement)) for rank in range(len(placement)))
    schedule = build(
        Spec(
            arguments.collective,
            len(placement),
            choice.algorithm,
            channels=choice.channels,
            placement=placement,
            perm=perm if arguments.collective == "permute" else (),
        )
    )
    print(
        f"{arguments.collective} of {shown(nbytes)}B {arguments.dtype}, {len(placement)} ranks in {processes} "
        f"process(es) on {arguments.hosts} host(s)\n"
        f"takes {choice.algorithm} by {choice.protocol}, {choice.channels} channel(s): {choice.reason}.\n"
        "candidates (estimated us):"
    )
    width = max(len(name) for name, _ in choice.candidates)
    for name, us in choice.candidates:
        print(f"  {name:<{width}}  {us:>10.4g}")
    if arguments.schedule:
        verify(schedule)
        print(f"\n{schedule}")
    return 0
