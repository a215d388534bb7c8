"""Simulate a collective on a described cluster: time, bandwidth, use of links, critical path.

    jaxring simulate --cluster hgx-h100 --nodes 128 --collective all_reduce --bytes 1G
    jaxring simulate --cluster hgx-h100 --nodes 1 --bytes 1M,16M,256M --algorithm ring,tree --plot out/all_reduce.png
    jaxring simulate --cluster ethernet-25g --nodes 16 --straggler 3:2.5 --jitter 20 --seed 7

The schedules are those that the engines run, played in virtual time; docs/concepts/simulator.md says what is modelled.
Nothing is started. Without --algorithm it is the one that the planner would choose.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import resource
from typing import TYPE_CHECKING, Any

from jaxring.bench.status import Status
from jaxring.cli import arguments as types
from jaxring.cli import modules, pictures, simulate_step, tables
from jaxring.errors import JaxringError
from jaxring.plan import tuner
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.foreign import reading
from jaxring.plan.protocols import MESSAGES
from jaxring.plan.schedule import ScheduleError
from jaxring.settings.sizes import shown
from jaxring.simulate import clusters, goal
from jaxring.simulate.chakra import nodes
from jaxring.simulate.chakra import schedule as chakra
from jaxring.simulate.faults import Faults
from jaxring.simulate.groups import check, within
from jaxring.simulate.run import Run, schedule_of, simulate, spec_of
from jaxring.simulate.tile_sizes import cut

if TYPE_CHECKING:
    from jaxring.plan.schedule import Schedule
    from jaxring.simulate.clusters import AnyCluster
    from jaxring.simulate.groups import Groups
    from jaxring.simulate.tile_sizes import Sizes

HELP = "simulate a collective on a described cluster"
# Pieces of the critical path that are printed.
_PIECES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring simulate`."""
    add = parser.add_argument
    files = "a TOML file of that form, a network file of ASTRA-sim's, or InfraGraph"
    help_ = f"one of {', '.join(clusters.names())}, or {files} (default: hgx-h100)"
    add("--cluster", default="hgx-h100", metavar="NAME", help=help_)
    help_ = "hosts; several with commas (default: 1)"
    add("--nodes", type=_several(types.positive), default="1", metavar="N", help=help_)
    help_ = "hosts that share their first switches (default: the cluster's)"
    add("--leaf", type=types.positive, default=0, metavar="N", help=help_)
    collective = types.one_of("collective", tuple(COLLECTIVES))
    add("--collective", type=collective, default="all_reduce", metavar="NAME", help=", ".join(COLLECTIVES))
    help_ = "input bytes of a rank, with K, M or G; several with commas (default: 1M)"
    add("--bytes", dest="sizes", type=_several(types.nbytes), default="1M", metavar="SIZE", help=help_)
    add("--algorithm", type=lambda text: text.split(","), default=[], metavar="NAME", help="several with commas")
    modules.add_argument(parser)
    help_ = "an algorithm in MSCCL's XML or MSCCL++'s JSON instead of --algorithm"
    add("--plan", type=pathlib.Path, metavar="FILE", help=help_)
    add("--protocol", default="simple", metavar="NAME", help=f"{', '.join(MESSAGES)} (default: simple)")
    help_ = "channels of the schedule (default: the cluster's, at most 4 where domains have a rail for each rank)"
    add("--channels", type=types.positive, default=0, metavar="N", help=help_)
    add("-d", dest="dtype", type=types.dtype, default="float32", metavar="TYPE", help="data type (default: float32)")
    help_ = "the time of one of so many, one after another, as a benchmark's loop has it (default: one by itself)"
    add("--repeat", type=types.positive, default=1, metavar="N", help=help_)
    add("--every-rank", action="store_true", help="play every rank, also where some stand for all")
    add("--json", action="store_true", help="print JSON instead")
    add("--plot", type=pathlib.Path, metavar="FILE", help="draw times over sizes (needs matplotlib)")
    add("--trace", type=pathlib.Path, metavar="FILE", help="write the last run for Perfetto")
    help_ = "simulate a training step instead: a list in JSON, a Chakra trace (.et), or a flight record"
    add("--step", type=pathlib.Path, metavar="FILE", help=help_)
    add("--goal", type=pathlib.Path, metavar="FILE", help="write the last run's schedule in GOAL, for LogGOPSim")
    help_ = "write the last run's schedule, or the step, as Chakra traces PREFIX.RANK.et"
    add("--chakra", type=pathlib.Path, metavar="PREFIX", help=help_)
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn at random (default: 0)")
    pairs: dict[str, str] = {
        "straggler": "RANK:FACTOR: the rank's work takes so many times as long",
        "late": "RANK:US: the rank begins so much later",
        "death": "RANK:US: the rank dies then",
    }
    for name, what in pairs.items():
        add(f"--{name}", type=_numbers, action="append", default=[], metavar=what.split(": ")[0], help=what)
    add("--link", action="append", default=[], metavar="FROM:TO:US:SHARE", help="from then on a link has this share")
    add("--jitter", type=float, default=0.0, metavar="US", help="mean of what messages arrive later")
    add("--loss", type=float, default=0.0, metavar="P", help="how probable it is that a message is lost")
    add("--timeout", type=float, default=0.0, metavar="US", help="after which it is sent again")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print. Raises JaxringError for what cannot be simulated, with the cycle of a deadlock."""
    pictures.check(arguments.plot)
    modules.load(arguments.modules)
    try:
        cluster = clusters.load(arguments.cluster)
        if arguments.leaf:
            cluster = dataclasses.replace(cluster, leaf=arguments.leaf)
        if arguments.plan:
            arguments.algorithm = [_registered(arguments)]
        if arguments.step:
            ranks = cluster.ranks * arguments.nodes[0]
            simulated = functools.partial(_one, arguments, cluster)
            return simulate_step.run(arguments.step, simulated, arguments.json, arguments.chakra, ranks)
        runs = _runs(arguments, cluster)
        if arguments.goal:
            arguments.goal.parent.mkdir(parents=True, exist_ok=True)
            arguments.goal.write_text(goal.text(*_exported(runs[-1], cluster, arguments.dtype)))
        if arguments.chakra:
            traces = chakra.by_rank(*_exported(runs[-1], cluster, arguments.dtype))
            simulate_step.write(arguments.chakra, map(nodes.write, traces))
    except ValueError as error:
        if getattr(error, "__notes__", ()) and not isinstance(error, ScheduleError):
            raise  # of a function of the user's, whose place is to be seen
        raise JaxringError(f"{error}.") from None
    if arguments.trace:
        _trace(arguments.trace, runs[-1])
    if arguments.plot:
        from jaxring.simulate.plot import plot

        plot(arguments.plot, runs)
    if arguments.json:
        print(json.dumps([_plain(each) for each in runs], indent=1))
        return 0
    out = tables.console()
    title = f"{arguments.collective} on {cluster.title}, simulated"
    columns = (
        "ranks",
        "bytes",
        "algorithm",
        "time us",
        "algbw GB/s",
        "busbw GB/s",
        "links busy",
        "messages",
        "played",
        "took s",
    )
    out.print(tables.table(title, columns, [_row(each) for each in runs], spare=("took s", "played", "messages")))
    _print_path(out, runs[-1])
    out.print(f"Simulated in {sum(run.cpu_s for run in runs):.1f} s of CPU time and {_peak_mib():.0f} MiB of memory.")
    return 0


def _peak_mib() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _runs(
    arguments: argparse.Namespace, cluster: AnyCluster, groups: Groups = (), perm: tuple[tuple[int, int], ...] = ()
) -> list[Run]:
    faults = _faults(arguments)
    runs = []
    with Status() as status:
        for hosts, nbytes in itertools.product(arguments.nodes, arguments.sizes):
            for algorithm in arguments.algorithm or [_choice(cluster, hosts, arguments, nbytes, groups)]:
                status.say(f"{algorithm}, {arguments.collective} of {shown(nbytes)} on {hosts} host(s)")
                runs.append(
                    simulate(
                        cluster,
                        hosts,
                        arguments.collective,
                        nbytes,
                        algorithm,
                        protocol=arguments.protocol,
                        channels=arguments.channels,
                        dtype=arguments.dtype,
                        symmetric=False if arguments.every_rank else None,
                        faults=faults,
                        groups=groups,
                        perm=perm,
                        times=arguments.repeat,
                    )
                )
    return runs


def _one(
    arguments: argparse.Namespace,
    cluster: AnyCluster,
    collective: str,
    nbytes: int,
    algorithm: str = "",
    groups: Groups = (),
    perm: tuple[tuple[int, int], ...] = (),
) -> Run:
    """The run of one collective of a training step, on the first number of hosts that is given."""
    options: dict[str, Any] = {"collective": collective, "sizes": [nbytes], "nodes": arguments.nodes[:1]}
    # A message is a permute of one pair, and --algorithm is meant for collectives.
    options["algorithm"] = [algorithm] if algorithm else [] if perm else arguments.algorithm[:1]
    return _runs(argparse.Namespace(**(vars(arguments) | options)), cluster, groups, perm)[0]


def _choice(cluster: AnyCluster, hosts: int, arguments: argparse.Namespace, nbytes: int, groups: Groups) -> str:
    """The algorithm that the planner takes, for the first of several groups."""
    placement, where = cluster.placement(hosts), cluster.machines(hosts)
    check(groups, len(placement))
    if groups:
        placement, where = within(placement, groups[0]), [where[rank] for rank in groups[0]]
    network = "rdma" if cluster.kind == "gpu" else "tcp"
    return tuner.choose(arguments.collective, placement, where, nbytes, arguments.dtype, network=network).algorithm


def _faults(arguments: argparse.Namespace) -> Faults | None:
    links = []
    for text in arguments.link:
        parts = text.split(":")
        try:
            source, target, when, share = parts
            links.append((source, target, float(when), float(share)))
        except ValueError:
            raise JaxringError(f"--link {text!r} is not FROM:TO:US:SHARE, such as h0n0:leaf0.0:50:0.5.") from None
    faults = Faults(
        seed=arguments.seed,
        stragglers=tuple(arguments.straggler),
        late=tuple(arguments.late),
        jitter=arguments.jitter,
        loss=arguments.loss,
        timeout=arguments.timeout,
        links=tuple(links),
        deaths=tuple(arguments.death),
    )
    return None if faults == Faults(seed=arguments.seed) else faults


def _several(each: Any) -> Any:
    return lambda text: [each(part) for part in text.split(",")]


def _numbers(text: str) -> tuple[int, float]:
    """A rank and a number."""
    rank, _, value = text.partition(":")
    try:
        return int(rank), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:NUMBER: write 3:2.5") from None


def _plain(run: Run) -> dict[str, Any]:
    """A run without its record, for JSON."""
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name != "record"}
    if run.record is not None:
        fields["critical_path_us"] = _shares(run)
    return fields


def _shares(run: Run) -> dict[str, float]:
    """Us of the critical path by what they went into; "other" is what a start and barriers take."""
    found: dict[str, float] = {}
    for piece in run.record.critical_path() if run.record else ():
        found[piece.kind] = found.get(piece.kind, 0.0) + piece.end - piece.begin
    return found | {"other": max(0.0, run.time_us - sum(found.values()))}


def _row(run: Run) -> list[str]:
    busy = ", ".join(f"{kind} {mean:.0%} (most {most:.0%})" for kind, (mean, most) in sorted(run.used.items()))
    rates = f"{run.algorithm_gbs:.2f}", f"{run.bus_gbs:.2f}"
    return [
        str(run.ranks),
        shown(run.nbytes),
        f"{run.algorithm}/{run.protocol}, {run.channels} channel(s)",
        f"{run.time_us:,.1f}",
        *rates,
        busy or "none",
        str(run.messages),
        run.how,
        f"{run.cpu_s:.1f}",
    ]


def _print_path(out: Any, run: Run) -> None:
    if run.record is None:
        out.print("The last run has too many messages for a record of each: no critical path.")
        return
    shares = ", ".join(f"{kind} {us:.1f} us" for kind, us in sorted(_shares(run).items(), key=lambda entry: -entry[1]))
    out.print(f"Critical path of the last run: {shares}.")
    pieces = [piece for piece in run.record.critical_path() if piece.end > piece.begin]
    longest = sorted(pieces, key=lambda piece: piece.begin - piece.end)[:_PIECES]
    rows = [
        (f"{p.begin:.1f}", f"{p.end - p.begin:.2f}", p.kind, p.what) for p in sorted(longest, key=lambda p: p.begin)
    ]
    out.print(tables.table("Its longest pieces", ("from us", "us", "kind", "what"), rows))


def _registered(arguments: argparse.Namespace) -> str:
    """The algorithm of a plan's file by its name; the file says the collective."""
    try:
        name, arguments.collective = reading.register(_text(arguments.plan))
    except ValueError as error:
        raise ValueError(f"{arguments.plan}: {error}") from None
    return name


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JaxringError(f"{path} cannot be read: {error}.") from None


def _exported(run: Run, cluster: AnyCluster, dtype: str) -> tuple[Schedule, Sizes, float]:
    """A run's schedule for formats of other simulators, how it is cut, and us for each byte that a step reads."""
    model = cluster.models[run.protocol]
    schedule = schedule_of(spec_of(run.collective, cluster.placement(run.hosts), run.algorithm, run.channels))
    return schedule, cut(schedule, run.nbytes, dtype, model.tile_bytes), model.copy


def _trace(path: pathlib.Path, run: Run) -> None:
    if run.record is None:
        raise JaxringError("The last run has too many messages for a trace; simulate fewer ranks or bytes.")
    from jaxring.simulate.timeline import timeline

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(timeline(run.record)))
