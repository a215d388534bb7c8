"""What `jaxring topo` prints of paths, rings, trees and bounds."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

from jaxring.bench.status import Status
from jaxring.cli import tables
from jaxring.errors import JaxringError
from jaxring.plan import trees as planned_trees
from jaxring.plan.foreign import mscclpp_writer
from jaxring.plan.schedule import Spec
from jaxring.topology import paths
from jaxring.topology.formats import graph
from jaxring.topology.search import report
from jaxring.topology.search import trees as tree_search
from jaxring.topology.search.channels import channels
from jaxring.topology.search.gather import Gathering
from jaxring.topology.search.join import Joined
from jaxring.topology.search.rings import Rings
from jaxring.topology.search.trees import Trees
from jaxring.topology.wiring import name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jaxring.topology.fabric import Fabric
    from jaxring.topology.machine import Gpu, Machine, Net
    from jaxring.topology.search.bound import Bound
    from jaxring.topology.search.report import Found

# What has a bound, and a share of it.
Bounded = Rings | Joined | Trees | Gathering

_MOST_LINKS, _MOST_RANKS = 4, 64


def devices(machine: Machine) -> list[Gpu | Net]:
    """GPUs and NICs; a port that is listed at several CPUs once."""
    found: dict[str, Gpu | Net] = {}
    for gpu in machine.gpus:
        found.setdefault(name(gpu), gpu)
    for net in machine.nets:
        found.setdefault(name(net), net)
    return list(found.values())


def unknown_links(machine: Machine) -> str:
    """Which GPUs' NVLinks nothing says, and what that means for paths, rings and bounds; "" where all are known."""
    listed = [name(gpu) for gpu in paths.wired(machine)[0].machine.gpus if not gpu.links_known]
    if not listed:
        return ""
    return (
        f"The NVLinks of {', '.join(listed)} are not known: neither a topology file nor NVML says them. Paths, rings "
        "and the bound are those of the other links alone. Where these GPUs are, `pip install nvidia-ml-py` reads them."
    )


def show_paths(out: Any, machine: Machine) -> None:
    """The type and the GB/s of each pair's best path."""
    wiring, _ = paths.wired(machine)
    listed = devices(wiring.machine)
    short = [f"G{i}" for i in range(len(wiring.machine.gpus))]
    short += [f"N{i}" for i in range(len(listed) - len(short))]
    rows = []
    for number, one in zip(short, listed, strict=True):
        cells = []
        for other in listed:
            route = paths.route(wiring.machine, one, other)
            level = paths.of_devices(wiring.machine, one, other).upper()
            cells.append("-" if route is None else level if level == "LOC" else f"{level} {route.gigabytes:.4g}")
        rows.append([number, name(one), *cells])
    out.print(tables.table("Best paths (GB/s)", ("", "device", *short), rows))


def check(arguments: argparse.Namespace) -> bool:
    """Whether the options of `jaxring topo` ask for a search. JaxringError for one that would have no effect."""
    searches = any((arguments.rings, arguments.graph, arguments.compare, arguments.plan))
    if (arguments.gpus or arguments.steps is not None) and not searches:
        raise JaxringError("--gpus and --steps are of a search: add --rings, --graph, --compare or --plan.")
    if arguments.json and any((arguments.graph, arguments.compare, arguments.plan, arguments.svg)):
        raise JaxringError("--json prints what is found, and no file is written or compared: leave one of them out.")
    return searches


def places(found: Found, gpus: Sequence[int]) -> list[int]:
    """For each rank of what was found among these GPUs its place in their list, one machine after the other."""
    listed = list(dict.fromkeys(gpus))
    of_machine = [listed.index(gpu.dev) for gpu in found.rings.wiring.machine.gpus if gpu.dev in listed]
    return [machine * len(listed) + place for machine in range(found.machines) for place in of_machine]


def search(machine: Machine, machines: int, cross_nic: bool, gpus: Sequence[int], steps: int | None) -> Found:
    """Rings and trees of the GPUs with these numbers, or of all where none is given, with at most so many steps.

    Raises JaxringError where there are none, with the reason.
    """
    wiring = paths.wired(machine)[0]
    numbers = [gpu.dev for gpu in wiring.machine.gpus]
    absent = [gpu for gpu in gpus if gpu not in numbers]
    if absent:
        there = ", ".join(map(str, numbers)) or "none"
        raise JaxringError(f"--gpus names GPU {absent[0]}, which this machine does not have. There are: {there}.")
    members = [numbers.index(gpu) for gpu in dict.fromkeys(gpus)] or None
    try:
        with Status() as status:
            status.say("searching rings and trees")
            return report.find(wiring, machines, cross_nic, members, steps)
    except ValueError as error:
        raise JaxringError(f"There are no rings to search: {error}.") from None


def show_rings(out: Any, found: Found) -> None:
    """Rings and trees beside the bound, and what limits them."""
    rings, trees = found.rings, found.trees
    gpus = rings.wiring.machine.gpus
    ports = [rings.wiring.fabric.vertices[nic].name for nic in rings.wiring.nics]
    rows = []
    for ring in rings.rings:
        stops = [name(gpus[gpu]) for gpu in ring.order]
        if ring.nics:
            stops = [ports[ring.nics[0]], *stops, ports[ring.nics[1]]]
        rows.append([f"{ring.gigabytes:.4g}", " ".join(stops)])
    out.print(tables.table("Rings", ("GB/s", "in this order"), rows))
    of = f"on {found.machines} such machines" if found.machines > 1 else "on this machine"
    members = sorted(rings.rings[0].order)
    if len(members) < len(gpus):
        of = f"among {', '.join(name(gpus[gpu]) for gpu in members)} {of}"
    named: list[tuple[str, Bounded]] = [("rings", rings), ("trees (all_reduce)", trees)]
    if found.gathering:
        named.append(("trees (all_gather)", found.gathering))
    show_bounds(out, of, named)
    show_time(out, found.seconds)
    show_bottleneck(out, found.fabric, rings.bound)
    if rings.share < 1 - 1e-6:
        full = report.links_of(rings.wiring.fabric, report.filled(rings))
        if full:
            out.print(f"The rings fill {_said(full)}.", highlight=False)


def show_bounds(out: Any, where: str, found: Sequence[tuple[str, Bounded]]) -> None:
    """Schedules by their names, beside the bound."""
    columns = ("schedule", "busbw GB/s", "bound", "share", "proof")
    out.print(tables.table(f"All ranks {where}, long messages", columns, [_row(*each) for each in found]))


def show_time(out: Any, seconds: float) -> None:
    """How long the searches took, of one processor."""
    out.print(f"Searched for {seconds:.2f} s of CPU time.", highlight=False)


def show_bottleneck(out: Any, fabric: Fabric, bound: Bound) -> None:
    """The cut that limits an all-gather, and its links."""
    ranks, enters = report.bottleneck(fabric, bound)
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    who = ", ".join(ranks[:_MOST_RANKS]) + more
    links = _said(report.links_of(fabric, bound.links))
    out.print(f"Bottleneck: what has to {'enter' if enters else 'leave'} {who} goes by {links}.", highlight=False)


def _row(schedule: str, found: Bounded) -> list[str]:
    bus = found.total if isinstance(found, Rings | Joined) else found.bus
    if found.share >= 1 - 1e-6:
        proof = "no schedule has more"
    elif isinstance(found, Joined):
        proof = "the best chains of each, of one speed"
    elif found.proven:
        proof = f"no set of {schedule.partition(' ')[0]} has more"
    else:
        proof = f"the best of {found.steps} steps, not proven"
    return [schedule, f"{bus:.4g}", f"{float(found.bound.bus):.4g}", f"{found.share:.1%}", proof]


def _said(links: list[dict[str, Any]]) -> str:
    texts = [f"{link['from']} -> {link['to']} ({link['gigabytes']:.4g} GB/s)" for link in links[:_MOST_LINKS]]
    more = len(links) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def as_json(machine: Machine, found: Found | None) -> str:
    """Devices, best paths, and what was found."""
    wiring, _ = paths.wired(machine)
    listed = devices(wiring.machine)
    routes = [
        {"from": name(one), "to": name(other), "type": route.level.upper(), "gigabytes": route.gigabytes}
        for one in listed
        for other in listed
        if one is not other and (route := paths.route(wiring.machine, one, other))
    ]
    unknown = [name(gpu) for gpu in wiring.machine.gpus if not gpu.links_known]
    answer: dict[str, Any] = {"source": machine.source, "devices": [name(each) for each in listed], "paths": routes}
    answer["nvlinks_unknown"] = unknown
    return json.dumps(answer | (report.plain(found) if found else {}), indent=1)


def write_graph(found: Found, path: str, cross_nic: bool) -> str:
    """Writes NCCL's graph XML, and says what stands in it."""
    made = channels(found.rings)
    _write(path, graph.text(graph.from_rings(found.rings, made, cross_nic)))
    count = len(made.rings)
    return f"{path}: {count} channel{'s' * (count > 1)} of {made.speed:.4g} GB/s, for NCCL_GRAPH_FILE."


def write_plan(trees: Trees, path: str, places: Sequence[int] = ()) -> str:
    """Writes the all-reduce by these trees as an execution plan of MSCCL++, verified, and says how to use it.

    ``places``: the plan's rank for each rank of the trees (empty: the same).
    """
    ranks = len(trees.fabric.ranks)
    place = places or range(ranks)
    parents = []
    for tree in tree_search.equal_parts(trees):
        moved = {place[rank]: place[parent] if parent >= 0 else -1 for rank, parent in enumerate(tree.parents)}
        parents.append([moved[rank] for rank in range(ranks)])
    _write(path, mscclpp_writer.text(planned_trees.build(Spec("all_reduce", ranks, "trees"), parents)))
    many = f"{len(parents)} tree{'s' * (len(parents) > 1)}"
    order = " in the order of --gpus" if places else ""
    return f"{path}: an all-reduce of {ranks} ranks{order} by {many}, for jaxring simulate --plan."


def compare(machine: Machine, found: Found, path: str) -> str:
    """How the rings of a graph file, such as NCCL dumps, stand beside ours."""
    theirs = next((each for each in graph.read(path) if each.id == graph.RING_ID), None)
    if theirs is None:
        raise JaxringError(f"{path} has no rings (graph {graph.RING_ID}).")
    try:
        graph.check(theirs, paths.wired(machine)[0].machine)
    except ValueError as error:
        raise JaxringError(f"{path} is no graph of this machine: {error}.") from None
    share = theirs.total / float(found.rings.bound.bus)
    count = len(theirs.channels)
    return (
        f"{path}: {count} rings of {theirs.speed_intra:.4g} GB/s, {theirs.total:.4g} in all, {share:.1%} of the bound; "
        f"ours have {found.rings.total:.4g}, {found.rings.share:.1%}."
    )


def _write(path: str, text: str) -> None:
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise JaxringError(f"{path} cannot be written: {error.strerror}.") from None


def write_drawing(machine: Machine, found: Found | None, path: str) -> str:
    """Draws the machine, and says where."""
    from jaxring.topology import drawing

    _write(path, drawing.svg(paths.wired(machine)[0], found))
    return f"{path}: the machine, drawn."
