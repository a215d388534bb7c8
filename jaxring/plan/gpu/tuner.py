"""Which algorithm, protocol and number of lanes to use on GPUs: a pure function of what all ranks know alike.

The prices of launches and hops (`jaxring.plan.protocols`) are from measurements of ranks that share one H200
(docs/benchmarks/h200), those of links estimates from published figures of NVLink machines: they order the candidates
and promise no times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.plan import cost, dtypes, protocols
from jaxring.plan.algorithms import ALGORITHMS, serving
from jaxring.plan.choice import Choice, asked_for, figures
from jaxring.plan.collectives import COLLECTIVES, Root
from jaxring.plan.gpu import copy_engine, experimental, nvls
from jaxring.plan.gpu.lanes import Path, lanes_for, path
from jaxring.plan.schedule import Spec
from jaxring.plan.tuner import kept_by_another

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.epilogue import EpilogueSpec

# Microseconds: of a launch with its epoch barriers, and of the host's part where it carries a message.
LAUNCH_US = 5.0
NETWORK_US = 25.0
# Bytes per microsecond: what a GPU reads from others, and a network that the host drives.
LINK_BYTES_PER_US = 300_000.0
NETWORK_BYTES_PER_US = 2_500.0
# What a copy within a GPU moves.
MEMORY_BYTES_PER_US = 1_500_000.0


def choose(
    collective: str,
    domains: Sequence[int],
    nbytes: int,
    dtype: object,
    most_lanes: int,
    algorithm: str | None = None,
    protocol: str | None = None,
    whole_lines: bool = False,
    fewest_lanes: int = 1,
    no_nvls: str = "it was not looked for",
    nvls_widening: int = 1,
    unwanted: Sequence[str] = (),
    unwanted_protocols: Sequence[str] = (),
    also: Sequence[str] = (),
    epilogue: EpilogueSpec | None = None,
) -> Choice:
    """The cheapest way to run ``collective`` with ``nbytes`` of input per rank.

    ``domains``: the domain of each rank; ranks of one address each other's memory, others go by the network.
    ``whole_lines``: 128-byte stores arrive whole between all ranks of a domain, so protocols that need it can serve.
    ``fewest_lanes``: where so many fit.
    ``no_nvls``: why the switch cannot do it, or "".
    ``nvls_widening``: for each byte of data, how many go through the switch.
    ``unwanted``, ``unwanted_protocols``: what is not taken unless asked for.
    ``also``: algorithms that may be taken though they are not taken unasked.
    ``epilogue``: what is applied to complete values: by kernels that play step tables, of protocols that have such.
    ValueError says why ``algorithm`` and ``protocol`` cannot serve and what would.
    """
    protocols.check(protocol, "GPU")
    asked = None if protocol is None else protocols.ON_GPUS[protocol]
    serve = [
        *(name for name in serving(collective) if "GPU" in ALGORITHMS[name].engines),
        *((copy_engine.NAME,) if collective in copy_engine.SERVED else ()),
        *((nvls.NAME,) if collective in nvls.SERVED else ()),
    ]
    if algorithm is not None and algorithm not in serve:
        known = (
            f"does not serve {collective}"
            if algorithm in {*ALGORITHMS, copy_engine.NAME, nvls.NAME}
            else "is not there"
        )
        raise ValueError(f"algorithm {algorithm!r} {known}; use {' or '.join(serve)}")
    if epilogue is not None:
        no_nvls = "the switch applies no epilogue"
        if asked is not None and not asked.epilogues:
            raise ValueError(
                f"protocol {protocol!r} cannot serve this {collective}: no kernel applies an epilogue by it; use "
                f"{protocols.with_epilogues()}"
            )
    if algorithm == nvls.NAME and no_nvls:
        raise ValueError(
            f"algorithm {algorithm!r} cannot do this {collective}: {no_nvls}; leave the choice to the tuner"
        )
    own = epilogue is not None and bool(epilogue.further)
    if own and algorithm is not None and not ALGORITHMS[algorithm].keeps(len(domains)):
        raise ValueError(kept_by_another(algorithm, collective, len(domains)))
    where = tuple(domains)
    topology = cost.Topology.of(where, where)
    if asked is not None and asked.whole_lines and topology.domains == 1 and not whole_lines:
        raise ValueError(
            f"protocol {protocol!r} cannot serve this {collective}: it needs 128-byte stores that arrive whole, as "
            "they do within one GPU and over NVLink, and some of its ranks have another link between their GPUs, where "
            f"half a line could be taken for a whole one; use {protocols.without_whole_lines()}"
        )
    widening = cost.widening(collective, dtypes.element_bytes(dtype), dtypes.accumulator_bytes(dtype))
    may_choose = [name for name in serve if name not in ALGORITHMS or name in also or "GPU" in ALGORITHMS[name].unasked]
    names = [algorithm] if algorithm else [name for name in may_choose if name not in unwanted]
    if own:
        names = [name for name in names if name in ALGORITHMS and ALGORITHMS[name].keeps(topology.nranks)]
    excluded = [kind for kind in unwanted_protocols if kind != protocol]
    total = COLLECTIVES[collective].total(topology.nranks, nbytes)
    # The switch rounds its sum to the dtype by itself, which is measured to truncate for bfloat16.
    rounds = COLLECTIVES[collective].reduces and widening > 1 and nvls_widening == 1
    found: list[tuple[float, int, str, str, int]] = []
    for name in names:
        if name == copy_engine.NAME:
            wanted = algorithm is not None or name in also
            fits = topology.domains == 1 and topology.nranks > 1 and protocol in (None, "memory")
            if wanted and fits and "memory" not in excluded:
                found.append((_copy_price(collective, topology, nbytes), len(found), name, "memory", 1))
            continue
        if name == nvls.NAME:
            wanted = (name in also and not rounds) or algorithm is not None
            if not no_nvls and wanted and protocol in (None, "memory") and "memory" not in excluded:
                lanes = lanes_for(Path.MEMORY, total, most_lanes, fewest_lanes)
                price = _switch_price(collective, topology, nbytes * nvls_widening, lanes)
                found.append((price, len(found), name, "memory", lanes))
            continue
        silent = topology.nranks == 1 or (ALGORITHMS[name].memory and topology.domains == 1)
        way = path(collective, topology.nranks, nbytes, silent, epilogue is not None, most_lanes, whole_lines)
        lanes = _lanes(collective, name, where, nbytes, way, most_lanes, fewest_lanes)
        composes = topology.width > 1 and topology.domains > 1
        if lanes == 0 or (ALGORITHMS[name].hierarchical and not composes and not algorithm):
            continue
        for kind in _kinds(silent, protocol, whole_lines and topology.domains == 1, epilogue is not None):
            if kind in excluded:
                continue
            spread = 1.0 if epilogue is None else epilogue.spread_share(dtype)
            price = _price(collective, name, topology, nbytes, lanes, widening, kind, spread)
            found.append((price, len(found), name, kind, lanes))
    if not found:
        what = f"algorithm {algorithm or 'of any kind'!r} with protocol {protocol or 'of any kind'!r}"
        raise ValueError(
            f"{collective} among {topology.nranks} ranks in {topology.domains} memory domain(s) of GPUs has no {what}: "
            "'memory' needs one domain and an algorithm that reads memory, the others need messages, "
            f"{' and '.join(name for name, each in protocols.MESSAGES.items() if each.whole_lines)} needs one domain"
        )
    found.sort()
    price, _, name, kind, lanes = found[0]
    fuses = kind == "memory" and epilogue is None
    way = path(collective, topology.nranks, nbytes, fuses, most_lanes=most_lanes, near=whole_lines)
    reason = f"{name} by {kind} is the cheapest of {len(found)} candidates, estimated {figures(price)} us"
    if name == nvls.NAME and nvls_widening > 1:
        reason += f"; its elements go through the switch {nvls_widening} times as wide"
    if not no_nvls and rounds and nvls.NAME in also and algorithm is None:
        reason += f"; nvls could do it, and would have the switch round to {dtype}, so only a call can ask for it"
    elif not no_nvls and nvls.NAME not in (*also, *unwanted) and algorithm is None:
        why_not = experimental.mark("nvls", ", since it is ")
        reason += f"; nvls could do it, and is not chosen unasked{why_not} (JAXRING_ALGO=+nvls)"
    return Choice(
        name,
        kind,
        lanes,
        reason + experimental.of_choice(name),
        [(f"{candidate}/{how}", us) for us, _, candidate, how, _ in found],
        asked_for(algorithm, protocol),
        one_shot=way is Path.PUSH,
    )


def by_messages(nbytes: int, most_lanes: int, why: str) -> Choice:
    """How a call travels that has no other way than direct messages, for the reason ``why``."""
    return Choice(
        "direct", "simple", lanes_for(Path.MESSAGES, nbytes, most_lanes), why + experimental.of_choice("direct"), []
    )


def _lanes(collective: str, name: str, where: tuple[int, ...], nbytes: int, way: Path, most: int, fewest: int) -> int:
    """Channels of the schedule, whose lanes fit; 0 if even one channel has too many."""
    from jaxring.plan.algorithms import build

    total = COLLECTIVES[collective].total(len(where), nbytes)
    channels = lanes_for(way, total, most, fewest)
    while channels and build(Spec(collective, len(where), name, channels=channels, placement=where)).nlanes > most:
        channels //= 2
    return channels


def _kinds(silent: bool, protocol: str | None, whole_lines: bool, epilogue: bool) -> list[str]:
    if silent:
        return ["memory"] if protocol in (None, "memory") else []
    return [
        name
        for name, each in protocols.MESSAGES.items()
        if protocol in (None, name) and (whole_lines or not each.whole_lines) and (each.epilogues or not epilogue)
    ]


def _price(
    collective: str,
    name: str,
    topology: cost.Topology,
    nbytes: int,
    lanes: int,
    widening: int,
    kind: str,
    spread: float,
) -> float:
    shape = ALGORITHMS[name].shape_on(collective, topology, nbytes, lanes, widening, spread=spread)
    how = protocols.ON_GPUS[kind]
    # One lane does not fill a link; this many do, roughly.
    busy = min(1.0, lanes / 16)
    if kind == "memory":
        phases = len(COLLECTIVES[collective].phases)
        return round(LAUNCH_US + phases * _crossing(collective, topology, nbytes) / (LINK_BYTES_PER_US * busy), 3)
    if topology.domains > 1:
        wire = shape.hops * (how.hop_us + NETWORK_US) + shape.wire_bytes / (NETWORK_BYTES_PER_US * how.data_share)
    else:
        wire = shape.hops * how.hop_us + shape.wire_bytes / (LINK_BYTES_PER_US * busy * how.data_share)
    return round(LAUNCH_US + wire + shape.memory_bytes / (LINK_BYTES_PER_US * busy), 3)


def _crossing(collective: str, topology: cost.Topology, nbytes: int) -> float:
    """Bytes into the busiest rank: a share of the vector from, or to, each other one; a reduction's root reads
    the others' whole vectors."""
    n, facts = topology.nranks, COLLECTIVES[collective]
    total = facts.total(n, nbytes)
    return total * (n - 1) if facts.reduces and facts.root is Root.TARGET else total * (n - 1) / n


def _copy_price(collective: str, topology: cost.Topology, nbytes: int) -> float:
    """Two epoch barriers, the copies to the peers, and those from the staging buffer to the output."""
    crossing = _crossing(collective, topology, nbytes)
    return round(3 * LAUNCH_US + crossing / LINK_BYTES_PER_US + crossing / MEMORY_BYTES_PER_US, 3)


def _switch_price(collective: str, topology: cost.Topology, nbytes: int, lanes: int) -> float:
    """Each rank's part goes up to the switch once and comes down once, and through the memory beside it."""
    n, facts = topology.nranks, COLLECTIVES[collective]
    total = facts.total(n, nbytes)
    link = total if len(facts.phases) > 1 else total * (n - 1) / n
    busy = min(1.0, lanes / 16)
    return round(2 * LAUNCH_US + link / (LINK_BYTES_PER_US * busy) + 2 * total / (MEMORY_BYTES_PER_US * busy), 3)
