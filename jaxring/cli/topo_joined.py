"""What `jaxring topo --join` prints: rings over machines that may differ, and what part they are of the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxring.bench.status import Status
from jaxring.cli import tables, topo_search
from jaxring.errors import JaxringError
from jaxring.topology import paths, xml
from jaxring.topology.search import report
from jaxring.topology.search import rings as ring_search
from jaxring.topology.search.join import join

if TYPE_CHECKING:
    import argparse

    from jaxring.topology.machine import Machine
    from jaxring.topology.search.rings import Rings

_REFUSED = ("xml", "job", "paths", "graph", "compare", "plan", "svg", "json", "gpus")


def run(machine: Machine, arguments: argparse.Namespace) -> int:
    """Searches a job on ``machine`` and those of the files, one after the other, and prints what it finds.

    Raises JaxringError where no ring joins them, and for an option that is of one kind of machine.
    """
    refused = next((name for name in _REFUSED if getattr(arguments, name)), None)
    if refused or arguments.machines > 1 or not arguments.rings:
        option = f"--{refused}" if refused else "--machines" if arguments.machines > 1 else "--join"
        raise JaxringError(
            f"{option}: --join is of machines that differ, and prints their rings: give it with --rings, and with "
            "--cross-nic and --steps if you like."
        )
    machines = [machine, *(xml.read(file) for file in arguments.join)]
    began = report.clock()
    with Status() as status:
        status.say("searching rings and trees")
        chains = [_chains(each, len(machines), arguments) for each in machines]
        joined = join(chains)
        trees, gathering = report.trees_of(joined.fabric, arguments.steps)
    seconds = report.clock() - began
    names = [joined.fabric.vertices[rank].name for rank in joined.fabric.ranks]
    rows = [[f"{joined.speed:.4g}", " ".join(names[rank] for rank in ring)] for ring in joined.rings]
    out: Any = tables.console()
    out.print(tables.table("Rings", ("GB/s", "in this order"), rows))
    found: list[tuple[str, topo_search.Bounded]] = [("rings", joined), ("trees (all_reduce)", trees)]
    if gathering:
        found.append(("trees (all_gather)", gathering))
    topo_search.show_bounds(out, f"on these {len(machines)} machines", found)
    topo_search.show_time(out, seconds)
    topo_search.show_bottleneck(out, joined.fabric, joined.bound)
    return 0


def _chains(machine: Machine, machines: int, arguments: argparse.Namespace) -> Rings:
    steps = ring_search.STEPS if arguments.steps is None else arguments.steps
    wiring = paths.wired(machine)[0]
    try:
        return ring_search.search(wiring, machines=machines, cross_nic=arguments.cross_nic, steps=steps)
    except ValueError as error:
        raise JaxringError(f"There are no rings through the machine from {machine.source}: {error}.") from None
