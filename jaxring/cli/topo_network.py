"""`jaxring topo --file` of a network's file: what is in it, and with --rings trees beside what it can do."""

from __future__ import annotations

import collections
import json
import pathlib
from typing import TYPE_CHECKING, Any

from jaxring.bench.status import Status
from jaxring.cli import tables, topo_search
from jaxring.errors import JaxringError
from jaxring.topology.fabric import VertexKind
from jaxring.topology.formats import reading
from jaxring.topology.search import report

if TYPE_CHECKING:
    import argparse

    from jaxring.topology.fabric import Fabric
    from jaxring.topology.search.gather import Gathering
    from jaxring.topology.search.trees import Trees

_OTHERS = ("xml", "paths", "graph", "compare", "svg", "cross_nic", "gpus")


def run(arguments: argparse.Namespace) -> int:
    """Print it; trees and bounds are of all links.

    Raises JaxringError for a file that is broken, with the line, and for options of a machine.
    """
    for option in _OTHERS:
        if getattr(arguments, option):
            name = option.replace("_", "-")
            raise JaxringError(f"--{name} is for a machine; {arguments.file} describes a network. Leave it out.")
    if arguments.machines > 1:
        raise JaxringError(f"--machines is for a machine; {arguments.file} describes all there are. Leave it out.")
    topo_search.check(arguments)
    try:
        network = reading.read(pathlib.Path(arguments.file))
        began = report.clock()
        with Status() as status:
            status.say("searching trees")
            found = report.trees_of(network.fabric, arguments.steps) if arguments.rings or arguments.plan else None
        seconds = report.clock() - began
    except ValueError as error:
        raise JaxringError(f"{error}.") from None
    links = _links(network.fabric)
    others = sum(vertex.kind is not VertexKind.RANK for vertex in network.fabric.vertices)
    if arguments.json:
        counts = {"ranks": len(network.groups), "groups": len(set(network.groups)), "others": others}
        answer: dict[str, Any] = {"source": arguments.file, **counts, "links": links}
        if found:
            answer |= {each[0]: {"bus": each[1].bus, "bound": float(each[1].bound.bus)} for each in _named(*found)}
        print(json.dumps(answer, indent=1))
        return 0
    out = tables.console()
    ranks, groups = len(network.groups), len(set(network.groups))
    title = network.title[0].upper() + network.title[1:]
    out.print(f"{title}: ranks {ranks}, groups of ranks {groups}, switches and other parts {others}.", highlight=False)
    rows = [[each["kind"], f"{each['gigabytes']:.4g}", f"{each['us']:.4g}", str(each["count"])] for each in links]
    out.print(tables.table("Links", ("kind", "GB/s each way", "us", "count"), rows))
    if found and arguments.rings:
        topo_search.show_bounds(out, "on this network", _named(*found))
        topo_search.show_time(out, seconds)
        topo_search.show_bottleneck(out, network.fabric, found[0].bound)
    if found and arguments.plan:
        print(topo_search.write_plan(found[0], arguments.plan))
    return 0


def _named(trees: Trees, gathering: Gathering | None) -> list[tuple[str, Trees | Gathering]]:
    named: list[tuple[str, Trees | Gathering]] = [("trees (all_reduce)", trees)]
    return [*named, ("trees (all_gather)", gathering)] if gathering else named


def _links(fabric: Fabric) -> list[dict[str, Any]]:
    """Kinds of links, and how many pairs of them there are."""
    counted = collections.Counter((link.kind, link.gigabytes, link.latency) for link in fabric.links)
    return [
        {"kind": kind, "gigabytes": gigabytes, "us": us, "count": count // 2}
        for (kind, gigabytes, us), count in sorted(counted.items())
    ]
