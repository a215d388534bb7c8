"""`jaxring doctor --job`: what the processes of a job lack, where their settings differ, and what joins each two."""

from __future__ import annotations

import dataclasses
import json
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxring import _compat
from jaxring.bench import table
from jaxring.bench.status import Status
from jaxring.cli import terminal
from jaxring.communicator import Communicator
from jaxring.errors import JaxringError
from jaxring.runtime import service
from jaxring.settings.variables import PREFIX, shown
from jaxring.world import launch, wire
from jaxring.world.store import JaxStore
from jaxring.world.transports import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jaxring.settings import Origin
    from jaxring.topology.findings import Finding
    from jaxring.topology.host import Host
    from jaxring.world.job_world import World

_PREFIX = "jaxring/doctor/"
_MOST_BYTES = 1 << 20
# A host that is there and listens answers within a round trip; a firewall never does.
_CONNECT_S = 5.0
# All tries of a process, and how long the others wait for what it has found, which has to be longer.
_TRIES_S, _TIMEOUT_S = 40.0, 60.0
_EXCHANGED = 4 << 20
_TIMES = 5


@dataclasses.dataclass
class Link:
    """What joins two processes. ``fault``: why ``one`` cannot connect to ``other``, ""; ``gbs``: GB/s, 0 if unknown."""

    one: int
    other: int
    transport: str
    interface: str
    mtu: int
    gbs: float
    fault: str


def run(host: Host, variables: Mapping[str, Origin], findings: Sequence[Finding], as_json: bool) -> int:
    """Examines the job that the environment names; process 0 prints. Returns 1 where something grave was found.

    Raises JoinError where there is no job, or where a process of it does not come.
    """
    launch.join("jaxring doctor --job")
    state = _compat.distributed_state()
    assert state is not None
    store, process, count = JaxStore(), state.process, state.processes
    own: dict[str, Any] = {
        "host": host.name,
        "settings": {name: shown(origin.value) for name, origin in variables.items()},
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "mtus": {each.name: each.mtu for each in host.interfaces},
    }
    store.set(f"{_PREFIX}{process}", wire.encode(own))
    with Status() as status:
        say = status.say if process == 0 else _silent
        say(f"waiting for {count} processes")
        seen = [wire.decode(store.get(f"{_PREFIX}{p}", _TIMEOUT_S), _MOST_BYTES) for p in range(count)]
        differing = _differing([each["settings"] for each in seen])
        grave = any(finding["grave"] for each in seen for finding in each["findings"])
        links = _links(store, process, count, own["mtus"], say) if count > 1 else []
    if process == 0:
        hosts = [each["host"] for each in seen]
        if as_json:
            print(json.dumps(_as_json(seen, differing, links)))
        else:
            print("\n".join(_lines(hosts, seen, differing, links)))
    return int(grave or any(link.fault for link in links))


def _silent(_: str) -> None:
    """Process 0 says for all what is being done."""


def _differing(settings: Sequence[Mapping[str, str]]) -> dict[str, dict[str, list[int]]]:
    """The variables that have several values, and which processes have each."""
    found: dict[str, dict[str, list[int]]] = {}
    for name in settings[0]:
        values: dict[str, list[int]] = {}
        for process, each in enumerate(settings):
            values.setdefault(each.get(name, ""), []).append(process)
        if len(values) > 1:
            found[PREFIX + name] = values
    return found


def _links(
    store: JaxStore, process: int, count: int, mtus: Mapping[str, int], say: Callable[[str], None]
) -> list[Link]:
    """All links of the job, in all processes: first each tries to connect to all others, then pairs exchange data."""
    service.ensure_started()
    world = service.job().join(service.job().membership())
    say("trying connections")
    tried = _try_all(world, process, count, mtus)
    store.set(f"{_PREFIX}links/{process}", wire.encode({"links": [dataclasses.asdict(link) for link in tried]}))
    links: list[Link] = []
    for p in range(count):
        raw = wire.decode(store.get(f"{_PREFIX}links/{p}", _TIMEOUT_S), _MOST_BYTES)
        links += [Link(**link) for link in raw["links"]]
    if any(link.fault for link in links):
        return links  # a collective would wait for what cannot come
    speeds = _speeds(process, count, say)
    store.set(f"{_PREFIX}speeds/{process}", wire.encode(speeds))
    for p in range(count):
        found = wire.decode(store.get(f"{_PREFIX}speeds/{p}", _TIMEOUT_S), _MOST_BYTES)
        for link in links:
            if link.one == p:
                link.gbs = found.get(str(link.other), 0.0)
    return links


def _try_all(world: World, process: int, count: int, mtus: Mapping[str, int]) -> list[Link]:
    """A link to each other process, by its number.

    Behind a firewall every address takes as long as is waited for it, so that in a large job some are not tried.
    """
    deadline = time.monotonic() + _TRIES_S
    others = [p for p in range(count) if p != process]
    with ThreadPoolExecutor(min(32, len(others))) as pool:
        return list(pool.map(lambda p: _try(world, process, p, mtus, deadline), others))


def _try(world: World, process: int, other: int, mtus: Mapping[str, int], deadline: float) -> Link:
    """Whether this process can connect to where the other listens, and by which interface it leaves."""
    peer = world.info(other)
    try:
        transport = world.transport(other)
    except JaxringError as error:
        return Link(process, other, "none", "", 0, 0.0, str(error))
    if TRANSPORTS[transport].within_host:
        return Link(process, other, transport, "", 0, 0.0, "")
    names = {address: name for name, address, _ in world.own.addresses}
    faults = []
    for _, address, port in peer.addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            faults.append(f"{address} port {port}: not tried within {_TRIES_S:g} s")
            continue
        try:
            with socket.create_connection((address, port), min(left, _CONNECT_S)) as sock:
                name = names.get(sock.getsockname()[0], sock.getsockname()[0])
                return Link(process, other, transport, name, mtus.get(name, 0), 0.0, "")
        except OSError as error:
            faults.append(f"{address} port {port}: {error.strerror or error}")
    return Link(process, other, transport, "", 0, 0.0, "; ".join(faults))


def _speeds(process: int, count: int, say: Callable[[str], None]) -> dict[str, float]:
    """GB/s to each other process: every two exchange data at the same time as other pairs do, each in its turn."""
    comm = Communicator(timeout=_TIMEOUT_S)
    data, out = (np.zeros(_EXCHANGED, np.uint8) for _ in range(2))
    speeds = {}
    rounds = _rounds(count)
    for number, pairs in enumerate(rounds):
        say(f"exchanging data, round {number + 1} of {len(rounds)}")
        both = [pair for one, other in pairs for pair in ((one, other), (other, one))]
        times = []
        for _ in range(_TIMES):
            begin = time.perf_counter()
            comm.permute(data, both, out)
            times.append(time.perf_counter() - begin)
        partner = dict(both).get(process)
        if partner is not None:
            speeds[str(partner)] = _EXCHANGED / statistics.median(times[1:]) / 1e9
    return speeds


def _rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of ``count`` once, in rounds of disjoint ones: the circle method."""
    players: list[int] = [*range(count)] + [-1] * (count % 2)
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        players = [players[0], players[-1], *players[1:-1]]
    return rounds


def _as_json(seen: Sequence[Mapping[str, Any]], differing: Mapping[str, Any], links: Sequence[Link]) -> dict[str, Any]:
    return {
        "processes": jax.process_count(),
        "hosts": [each["host"] for each in seen],
        "findings": [each["findings"] for each in seen],
        "differing": differing,
        "links": [dataclasses.asdict(link) for link in links],
    }


def _lines(
    hosts: Sequence[str], seen: Sequence[Mapping[str, Any]], differing: Mapping[str, Any], links: Sequence[Link]
) -> list[str]:
    width = table.width_of()
    lines = [f"{len(hosts)} processes on {len(set(hosts))} host(s)"]
    found: dict[tuple[bool, str, str], list[int]] = {}
    for process, each in enumerate(seen):
        for finding in each["findings"]:
            found.setdefault((not finding["grave"], finding["what"], finding["mend"]), []).append(process)
    for (mild, what, mend), processes in sorted(found.items()):
        said = f"{'advice' if mild else 'GRAVE'}: {what} (on {_listed(processes)})"
        lines += ["", terminal.wrapped(said), terminal.wrapped(f"  {mend}")]
    lines.append("")
    if differing:
        lines.append("settings that differ:")
        for name, values in differing.items():
            lines += [f"  {name}={value or '(empty)'} on {_listed(on)}" for value, on in values.items()]
    else:
        lines.append("settings: the same in all processes")
    if links:
        columns = [
            table.Column(name, wide, text=text)
            for name, wide, text in (
                ("from", 5, False),
                ("to", 5, False),
                ("transport", 9, True),
                ("interface", 12, True),
                ("MTU", 6, False),
                ("GB/s", 7, False),
            )
        ]
        made = table.Table(columns, width)
        lines += ["", "links; GB/s each way, while other pairs exchange data, too:", made.header()]
        for link in sorted(links, key=lambda link: (not link.fault, link.one, link.other)):
            cells = {"from": str(link.one), "to": str(link.other), "transport": link.transport}
            cells |= {"interface": link.interface, "MTU": str(link.mtu or "")}
            cells["GB/s"] = f"{link.gbs:.2f}" if link.gbs else "none" if link.fault else ""
            lines.append(made.row(cells))
            if link.fault:
                lines.append(terminal.wrapped(f"  {link.fault}", "    "))
    return lines


def _listed(processes: Sequence[int]) -> str:
    shown_ = ", ".join(map(str, processes[:8])) + (f" and {len(processes) - 8} more" if len(processes) > 8 else "")
    return f"process{'es' * (len(processes) > 1)} {shown_}"
