"""List what this host gives to collectives, what it lacks, what each lack costs, and how to mend it.

    jaxring doctor
    srun jaxring doctor --job        the processes of a job together, and what joins each two of them
    jaxring doctor --settings        the documented table of variables, as Markdown

Shows first what it finds wrong, then the settings that differ from their defaults and where they come from (with --all
all settings), limits, network interfaces, and RDMA ports with their GIDs. Run it where the job will run: in its
container, under its service. Exits with 1 where a finding is grave.

With --job, started by srun, mpirun or anything else that `jax.distributed.initialize()` knows, process 0 prints what
the processes lack, the settings in which they differ, and for each two whether one can connect to the other, by which
transport and interface, with which MTU, and at how many GB/s. A link that cannot be made is grave, too.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import ipaddress
import json
import os
from typing import TYPE_CHECKING, Any

from jaxring.cli import tables
from jaxring.errors import SettingsError
from jaxring.plan.gpu import experimental
from jaxring.settings import examine, of, retired
from jaxring.settings.page import markdown
from jaxring.settings.sizes import shown as size_shown
from jaxring.settings.variables import PREFIX, shown
from jaxring.topology import detect, findings, host, paths
from jaxring.topology.findings import Finding

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from jaxring.settings import Origin
    from jaxring.topology.host import Host, Interface
    from jaxring.topology.machine import Machine
    from jaxring.topology.rdma import Gid, Port

HELP = "list devices, limits and settings, and what is wrong with them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring doctor`."""
    parser.add_argument("--settings", action="store_true", help="print the table of all variables, as Markdown")
    parser.add_argument("--job", action="store_true", help="examine the job that this process is part of")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--all", action="store_true", help="list settings that have their defaults, too")
    parser.add_argument("--all-gids", action="store_true", help="list link-local GIDs too")


def run(arguments: argparse.Namespace) -> int:
    """Print it all. A variable that is wrong is a grave finding; the rest is as it would be without it."""
    if arguments.settings:
        print(markdown(), end="")
        return 0
    from jaxring.topology import ports as rdma_ports

    variables, wrong = examine(os.environ)
    values = of(variables)
    here = host.describe()
    ports, source = rdma_ports.ports()
    try:
        machine = detect.machine(values)
    except SettingsError as error:  # of the file that JAXRING_TOPO_FILE names
        wrong.append(str(error))
        machine = detect.detect()
    cpus = os.sched_getaffinity(0)
    found = [*map(_wrong, wrong), *map(_retired, retired.warnings(os.environ))]
    found += findings.find(here, ports, machine, values, cpus)
    if arguments.job:
        from jaxring.cli import doctor_job

        return doctor_job.run(here, variables, found, arguments.json)
    if arguments.json:
        print(json.dumps(_as_json(variables, here, ports, found)))
        return int(any(finding.grave for finding in found))
    out = tables.console()
    rows = [(_severity(f), f.what, f.cost, f.mend) for f in sorted(found, key=lambda f: not f.grave)]
    out.print(tables.table("Findings", ("severity", "what", "what it costs", "how to mend it"), rows))
    title = "Settings" if arguments.all else "Settings that something sets"
    out.print(tables.table(title, ("variable", "value", "origin"), _settings(variables, arguments.all)))
    out.print(tables.table(f"Host {here.name}", ("what", "value"), _host(here)))
    columns: tuple[str, ...] = ("name", "state", "Gbit/s", "MTU", "addresses")
    out.print(tables.table("Network interfaces", columns, map(_interface, here.interfaces)))
    columns = ("device", "port", "state", "layer", "Gbit/s", "MTU", "LID", "interface", "PCI", "NUMA", "distance")
    out.print(tables.table(f"RDMA ports (by {source})", columns, (_port(p, machine, cpus) for p in ports)))
    if ports:
        columns = ("device", "port", "index", "type", "GID", "IP", "interface")
        out.print(tables.table("GIDs", columns, _gids(ports, arguments.all_gids)))
    return int(any(finding.grave for finding in found))


def _as_json(
    variables: Mapping[str, Origin], here: Host, ports: Sequence[Port], found: Sequence[Finding]
) -> dict[str, Any]:
    return {
        "settings": {
            PREFIX + name: {"value": shown(origin.value), "origin": origin.name or origin.ignored or "default"}
            for name, origin in variables.items()
        },
        "host": dataclasses.asdict(here),
        "rdma_ports": [dataclasses.asdict(port) for port in ports],
        "findings": [dataclasses.asdict(finding) for finding in found],
    }


def _wrong(sentence: str) -> Finding:
    """The finding for a variable that is wrong."""
    return Finding(sentence, "`import jaxring` raises SettingsError.", "Correct or unset it: docs/settings.md.", True)


def _retired(sentence: str) -> Finding:
    """The finding for a retired name that is set."""
    return Finding(sentence, "With the next release `import jaxring` raises SettingsError.", "docs/settings.md.", False)


def _severity(finding: Finding) -> str:
    return "grave" if finding.grave else "advice"


def _settings(variables: Mapping[str, Origin], every: bool) -> Iterator[tuple[object, ...]]:
    """Those that something sets, or tries to set, or all of them."""
    for name, origin in variables.items():
        source = origin.name or origin.ignored
        if source or every:
            yield PREFIX + name, shown(origin.value) or "(empty)", source or "default"


def _host(here: Host) -> Iterator[tuple[object, ...]]:
    yield "kernel", here.kernel
    yield "CPUs of this process", here.cpus
    limit = "unlimited" if here.memlock < 0 else size_shown(here.memlock)
    yield "locked memory", f"{limit}{' (IPC_LOCK: no limit)' if here.ipc_lock and here.memlock >= 0 else ''}"
    yield "/dev/shm", size_shown(here.shm_bytes)
    yield "transparent huge pages", here.huge_pages
    yield "TCP", f"congestion control {here.congestion}, send buffer up to {size_shown(here.socket_bytes)}"
    yield "runs in", "Kubernetes" if here.kubernetes else "a container" if here.container else "no container"
    built = importlib.util.find_spec("jaxring._native_cuda") is not None
    yield "CUDA engine", f"built{experimental.mark('cuda', '; ')}" if built else "not built"
    if here.gpus:
        yield "nvidia-peermem", "loaded" if here.peermem else "not loaded"
        yield "GPU memory as dma-buf", here.dmabuf or "possible"


def _interface(i: Interface) -> tuple[object, ...]:
    return i.name, i.state, _gbit(i.mbps), i.mtu, ", ".join(i.addresses)


def _port(port: Port, machine: Machine, cpus: set[int]) -> tuple[object, ...]:
    busid = detect.busid(port.pci)
    numa = next((pci.numa for pci in machine.pcis if pci.busid == busid), "")
    where = paths.to_cpus(machine, busid, cpus).upper() if busid else ""
    about = (port.device, port.port, port.state, port.layer, _gbit(port.mbps), port.mtu or "", port.lid or "")
    return (*about, port.interface, busid, numa, where)


def _gids(ports: Sequence[Port], every: bool) -> Iterator[tuple[Any, ...]]:
    for port in ports:
        for gid in port.gids:
            if every or gid.family != "link-local":
                yield port.device, port.port, gid.index, gid.type, gid.address, _ip(gid), gid.interface


def _ip(gid: Gid) -> str:
    """The IP address that a GID stands for."""
    address = ipaddress.IPv6Address(gid.address)
    return str(address.ipv4_mapped or "") if gid.family == "IPv4" else str(address)


def _gbit(mbps: int) -> str:
    return f"{mbps / 1000:g}" if mbps else ""
