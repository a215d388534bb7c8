"""Measure what the tuner chooses among on this machine, and have jaxring choose by it from now on.

    jaxring tune

runs jobs of a few layouts, times every candidate of every collective over sizes, fits the prices of messages, bytes and
switches of processes to that, and writes a profile to the user's cache. New processes on this kind of machine use it
where all processes of their job have the same one. It takes about a minute; do nothing else on the machine meanwhile.

    jaxring tune -n 8x1 -n 4x2

measures these layouts. What was measured of others before is kept. --hosts does it on hosts made of network namespaces.

    jaxring tune -n 4x1 --import chain --algorithm chain

measures an algorithm of your own beside the others: `jaxring explain` shows its times.

    jaxring tune --plot tune.svg

draws what was measured, and what the fitted prices predict.

    srun jaxring tune --ranks

is a job with a process on each host. It measures latency and bandwidth between the hosts and writes the order in which
rings had best visit them to each host's cache. Jobs whose processes all have the same order use it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from typing import TYPE_CHECKING

from jaxring import _command
from jaxring.bench import work
from jaxring.cli import arguments as types
from jaxring.cli import modules, pictures, tables
from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import argparse

    from jaxring.plan.profile import Profile

HELP = "measure this machine, and choose algorithms by it"
_LAYOUTS = ((1, 4), (2, 1), (4, 1), (2, 2))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring tune`."""
    add = parser.add_argument
    help_ = "processes x devices (default: 1x4, 2x1, 4x1 and 2x2)"
    add("-n", dest="jobs", type=types.layout, action="append", metavar="PxD", help=help_)
    add("-b", dest="begin", type=types.nbytes, default="64", metavar="SIZE", help="smallest size (default: 64)")
    add("-e", dest="end", type=types.nbytes, default="4M", metavar="SIZE", help="largest size (default: 4M)")
    add("-f", dest="factor", type=types.positive, default=4, metavar="N", help="factor between sizes (default: 4)")
    add("--hosts", type=types.positive, default=1, metavar="N", help="on N network namespaces (needs root; default: 1)")
    add("--rate", default="", metavar="RATE", help="of every host's link, as 1gbit (default: not shaped)")
    add("--out", type=pathlib.Path, metavar="FILE", help="write the result there, and leave the cache as it is")
    help_ = "measure the order of the hosts of the job that this process is part of, instead of this machine"
    add("--ranks", action="store_true", help=help_)
    add("--json", action="store_true", help="print the result in JSON")
    help_ = "draw measured and predicted times over sizes: .png, .svg or .pdf (needs matplotlib)"
    add("--plot", type=pathlib.Path, metavar="FILE", help=help_)
    modules.add_own(parser)
    help_ = "remove this machine's profile, with --ranks its order of hosts, and measure nothing"
    add("--forget", action="store_true", help=help_)
    parser.set_defaults(error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Measure, fit and write. Raises JaxringError for a job that cannot be, or that fails."""
    if arguments.plot and (arguments.ranks or arguments.forget):
        raise JaxringError(f"--plot draws what is measured of this machine: leave it out of {_other(arguments)}.")
    if arguments.ranks:
        return _order(arguments)
    from jaxring.bench.tuning.calibrate import calibrated, hosts_of, measure_all
    from jaxring.bench.tuning.cell import Layout, check
    from jaxring.topology import cache, calibration

    pictures.check(arguments.plot)
    kind = cache.machine_kind()
    if arguments.forget:
        calibration.file_of(kind).unlink(missing_ok=True)
        _forgotten(arguments.json, kind, f"jaxring chooses by its built-in profile on {kind}.")
        return 0
    if any(processes % arguments.hosts for processes, _ in arguments.jobs or _LAYOUTS):
        raise JaxringError(f"{arguments.hosts} hosts cannot share the processes of every -n equally.")
    layouts = [Layout(processes, devices, arguments.hosts) for processes, devices in arguments.jobs or _LAYOUTS]
    sizes = work.sizes(arguments.begin, arguments.end, arguments.factor)
    own = modules.own(arguments)
    check(layouts, own)
    before = calibration.current()
    begun = time.monotonic()
    with _command.ended_as_by_interrupt(), hosts_of(arguments.hosts, arguments.rate) as hosts:
        measured = measure_all(layouts, sizes, hosts, own)
    profile = calibrated(dataclasses.replace(before, kind=kind), measured)
    path, seconds = _write(profile, arguments.out), time.monotonic() - begun
    if arguments.json:
        print(json.dumps({"kind": kind, "file": str(path), "seconds": seconds, "profile": dataclasses.asdict(profile)}))
    else:
        print(f"measured in {seconds:.0f} s; the profile of {kind} is in {path}\n")
        _show(before, profile)
    if arguments.plot:
        from jaxring.bench.tuning.plot import plot

        plot(arguments.plot, measured, profile)
    return 0


def _other(arguments: argparse.Namespace) -> str:
    return "--forget" if arguments.forget else "--ranks"


def _forgotten(as_json: bool, kind: str, text: str) -> None:
    print(json.dumps({"kind": kind, "file": None}) if as_json else text)


def _order(arguments: argparse.Namespace) -> int:
    from jaxring.topology import cache
    from jaxring.topology import order as orders

    if arguments.forget:
        kind = cache.machine_kind()
        orders.file_of(kind).unlink(missing_ok=True)
        _forgotten(arguments.json, kind, "Rings visit hosts in the order of their ranks.")
        return 0
    from jaxring.bench.tuning import ranks

    begun = time.monotonic()
    order, found, writes = ranks.run()
    path = arguments.out
    try:
        if path is not None and found:
            path.write_text(order.text(), encoding="utf-8")
        elif path is None and writes:
            path = orders.save(order)
    except OSError as error:
        raise JaxringError(f"The order of hosts cannot be written: {error}.") from None
    if found is None:
        return 0
    seconds = time.monotonic() - begun
    if arguments.json:
        about = {"pairs": found.pairs, "kept": found.kept, "ring_s": found.cost, "in_order_of_ranks_s": found.before}
        hops = [dataclasses.asdict(hop) for hop in order.hops]
        print(json.dumps({"file": str(path), "seconds": seconds, "hops": hops} | about))
        return 0
    print(f"measured {found.pairs} pairs of {len(order.hosts)} hosts in {seconds:.0f} s; the order is in {path}\n")
    pairs = zip(order.hops, (*order.hops[1:], order.hops[0]), strict=True)
    rows = [(hop.host, after.host, f"{hop.us:g}", f"{hop.mbps / 1000:.3g}") for hop, after in pairs]
    tables.console().print(tables.table("Ring", ("from", "to", "us", "Gbit/s"), rows))
    if found.kept:
        print("It is the order of ranks: no ring was found that takes 10% less.")
    else:
        print(f"1 MiB takes {1e3 * found.cost:.3g} ms once around, and {1e3 * found.before:.3g} in the order of ranks.")
    return 0


def _write(profile: Profile, out: pathlib.Path | None) -> pathlib.Path:
    from jaxring.topology import calibration

    try:
        if out is None:
            return calibration.save(profile)
        out.write_text(profile.text(), encoding="utf-8")
    except OSError as error:
        raise JaxringError(f"The profile cannot be written: {error}.") from None
    return out


def _show(before: Profile, after: Profile) -> None:
    print(f"{'':10}  {'us a message':>24}  {'us of work a message':>24}  {'GB/s':>18}")
    for name in ("memory", "shm", "tcp"):
        old, new = before.link(name), after.link(name)
        alpha, work_ = (f"{getattr(old, f):.4g} -> {getattr(new, f):.4g}" for f in ("alpha", "overhead"))
        rate = " -> ".join(f"{1e-3 / each.beta:.3g}" if each.beta else "-" for each in (old, new))
        print(f"{name:10}  {alpha:>24}  {work_:>24}  {rate:>18}")
    switch = f"{before.constants.switch:.4g} -> {after.constants.switch:.4g}"
    print(f"{'switch':10}  {switch:>24}")
    sizes = [size for each in after.measured for size in each.nbytes]
    print(f"{len(after.measured)} candidates measured, from {shown(min(sizes))} to {shown(max(sizes))} for each rank.")
