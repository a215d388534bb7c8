"""Chooses algorithm, protocol and number of channels: a pure function of what all ranks know equally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.plan import cost, protocols, user
from jaxring.plan.algorithms import ALGORITHMS, serving
from jaxring.plan.candidate import Asked, candidate
from jaxring.plan.choice import Choice, Detail, asked_for, figures
from jaxring.plan.collectives import COLLECTIVES, PhaseKind
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.profile_file import COMMODITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.profile import Profile

DEFAULT_LL_BYTES = 4096
ANY_CHANNELS = (1, 1 << 16)
# The default of ranks that share memory: sending no messages is faster than any protocol for them.
BY_MEMORY = "direct"


def _names(
    collective: str,
    where: tuple[int, ...],
    topology: cost.Topology,
    algorithm: str | None,
    protocol: str | None,
    unwanted: Sequence[str],
    also: Sequence[str],
    own: bool,
) -> list[str]:
    """The algorithms to compare: the requested one, or those that may be chosen without a request.

    An algorithm that is known to be worse than another one is compared only where that one is unwanted. Those that are
    registered are compared where they are among ``also``.
    """
    if user.find(algorithm) is not None:
        return [str(algorithm)]
    if algorithm is not None:
        names = serving(collective)
        if algorithm in (copy_engine.NAME, nvls.NAME):
            raise ValueError(f"algorithm {algorithm!r} is for ranks on GPUs; on CPUs use {' or '.join(names)}")
        if algorithm not in ALGORITHMS:
            raise ValueError(f"there is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
        if algorithm not in names:
            raise ValueError(f"algorithm {algorithm!r} does not serve {collective}; use {' or '.join(names)}")
        if own and not ALGORITHMS[algorithm].keeps(topology.nranks):
            raise ValueError(kept_by_another(algorithm, collective, topology.nranks))
        return [algorithm]
    registered = [name for name in also if name in user.names(collective)]
    able = [
        name
        for name in serving(collective)
        if ("CPU" in ALGORITHMS[name].unasked or name in also)
        and ALGORITHMS[name].differs(where)
        and name not in unwanted
        and (ALGORITHMS[name].keeps(topology.nranks) or not own)
    ]
    if topology.domains == 1:
        if protocol in ("ll", "simple"):
            able = [name for name in able if not ALGORITHMS[name].memory]
            if not able:
                raise ValueError(
                    f"protocol {protocol!r} carries messages, but {collective} among ranks that share memory sends "
                    "none; use protocol 'memory'"
                )
            return able + registered
        preferred = [name for name in able if name == BY_MEMORY]
    elif topology.width == 1:  # nothing to compose
        preferred = [name for name in able if not ALGORITHMS[name].hierarchical]
    else:  # Flat algorithms would carry a domain's own traffic as messages.
        preferred = [name for name in able if ALGORITHMS[name].hierarchical]
    return (preferred or able) + registered


def choose(
    collective: str,
    placement: Sequence[int],
    hosts: Sequence[int],
    nbytes: int,
    dtype: object,
    algorithm: str | None = None,
    protocol: str | None = None,
    ll_bytes: int = DEFAULT_LL_BYTES,
    channels: tuple[int, int] = ANY_CHANNELS,
    unwanted: Sequence[str] = (),
    interfaces: int = 1,
    processors: int = 0,
    unwanted_protocols: Sequence[str] = (),
    also: Sequence[str] = (),
    network: str = "tcp",
    profile: Profile = COMMODITY,
    spread: float = 1.0,
    own: bool = False,
    root: int = 0,
    perm: Sequence[tuple[int, int]] = (),
) -> Choice:
    """The cheapest way to run ``collective`` with ``nbytes`` of input per rank.

    ``placement`` and ``hosts`` are the domain and host ids of the ranks. ``ll_bytes``: the longest message that the ll
    protocol carries (0: ll is not there). ``channels``: the fewest and the most of an algorithm that sends messages.
    ``unwanted``, ``unwanted_protocols``: what is not taken unless asked for. ``also``: algorithms that may be taken
    though they are not taken unasked: names of ours, and of a user's. ``interfaces``: of every host, over which
    channels between hosts are spread. ``processors``: what the processes of a host share (0: enough). ``network``:
    "tcp" or "rdma", by which messages between hosts are priced. ``profile``: the constants of the prices, and what was
    measured. ``spread``: bytes of an element of the result over bytes of an element, where an epilogue casts; of a
    reduce-scatter, which spreads nothing, the same as 1. ``own``: an epilogue needs operands of the rank that has the
    result. ``root``, ``perm``: of the call, for the tables of a user's algorithms. ``algorithm`` and ``protocol``
    restrict the choice; ValueError says why they cannot serve and what would. Same arguments give the same choice on
    every rank.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}; there are {', '.join(COLLECTIVES)}")
    protocols.check(protocol, "CPU")
    spread = spread if PhaseKind.SPREAD in COLLECTIVES[collective].phases else 1.0
    where = tuple(placement)
    topology = cost.Topology.of(where, tuple(hosts), processors, network)
    constants = profile.constants
    call = Asked(
        collective, where, tuple(hosts), topology, nbytes, dtype, constants, interfaces, spread, root, tuple(perm)
    )
    found: list[tuple[float, int, str, str, int]] = []
    details: dict[str, Detail] = {}
    layout = (topology.domains, topology.width, topology.hosts)
    refused = ""
    unwanted_protocols = [kind for kind in unwanted_protocols if kind != protocol]
    for name in _names(collective, where, topology, algorithm, protocol, unwanted, also, own):
        entry = candidate(call, name)
        silent = entry.silent
        if silent and protocol not in (None, "memory"):
            if entry.fixed and algorithm is None:
                continue
            raise ValueError(
                f"{name} {collective} of ranks that share memory sends no messages, so protocol {protocol!r} cannot "
                "carry any; use protocol 'memory', or a flat algorithm such as ring where it serves"
            )
        if not silent and protocol == "memory":
            refused = (
                f"protocol 'memory' needs all ranks in one domain and an algorithm that reads memory; {name} over "
                f"{topology.domains} domain(s) sends messages, use protocol 'simple' or 'll'"
            )
            continue
        for kind in ("memory",) if silent else ("ll", "simple"):
            if protocol not in (None, kind):
                continue
            if kind in unwanted_protocols:
                refused = f"protocol {kind!r}, which {name} would go by here, is excluded"
                continue
            natural = 1 if silent else entry.channels(kind == "ll")
            each = natural if silent or entry.fixed else max(channels[0], min(channels[1], natural))
            if kind == "ll":
                longest = entry.longest(each)
                if longest > ll_bytes:
                    refused = (
                        f"protocol 'll' carries messages of at most {ll_bytes} bytes, but {name} {collective} sends "
                        f"{longest}; use protocol 'simple'"
                    )
                    continue
            predicted = cost.price(entry.shape(each), topology, kind, profile)
            measured = profile.time(collective, name, kind, layout, nbytes) if spread == 1.0 else None
            details[f"{name}/{kind}"] = Detail(predicted, measured)
            found.append((predicted.us, len(found), name, kind, each))
    if not found and algorithm is None and protocol == "ll":
        raise ValueError(
            f"protocol 'll' carries messages of at most {ll_bytes} bytes, and {collective} of {nbytes} bytes sends "
            "longer ones by every algorithm; use protocol 'simple'"
        )
    if not found:
        raise ValueError(refused or f"every algorithm that serves {collective} is excluded")
    times = [details[f"{name}/{kind}"].measured for _, _, name, kind, _ in found]
    known = None not in times
    if known:  # a prediction and a measurement cannot be compared
        found = [(time or 0.0, i, n, k, c) for time, (_, i, n, k, c) in zip(times, found, strict=True)]
    found.sort()
    price, _, name, kind, count = found[0]
    return Choice(
        name,
        kind,
        count,
        _why(topology, name, kind, price, len(found), known),
        [(f"{each}/{how}", us) for us, _, each, how, _ in found],
        asked_for(algorithm, protocol),
        details,
        cost.light_us(collective, topology, nbytes, profile),
    )


def kept_by_another(algorithm: str, collective: str, ranks: int) -> str:
    """Why an algorithm does not serve an epilogue whose operands are a rank's own."""
    names = " or ".join(name for name in serving(collective) if ALGORITHMS[name].keeps(ranks))
    return (
        f"algorithm {algorithm!r} completes results of {ranks} ranks at ranks that do not have the epilogue's operands "
        f"for them; use {names}"
    )


def _why(topology: cost.Topology, name: str, kind: str, price: float, count: int, measured: bool) -> str:
    if kind == "memory":
        why = "all ranks share memory" if topology.nranks > 1 else "there is one rank"
    elif count == 1:
        why = f"{name} by {kind} is the only candidate, at {figures(price)} us"
    else:
        most = "fastest" if measured else "cheapest"
        why = f"{name} by {kind} is the {most} of {count} candidates, at {figures(price)} us"
    if measured and count > 1:
        why += " as measured on this kind of machine"
    if topology.crowded:
        why += f", with {topology.domains_per_host} processes on {topology.processors} processors"
    return why
