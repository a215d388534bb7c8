"""The choice of algorithm and protocol for a call: what the call asks for, what the settings say, then the tuner's."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jaxring._native as _native
from jaxring.plan import tuner
from jaxring.plan.algorithms.direct import DIRECT
from jaxring.plan.choice import Choice, asked_for, choose_allowed, choose_among, in_one_channel
from jaxring.plan.profile_file import COMMODITY
from jaxring.plan.selection import EVERYTHING
from jaxring.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.plan.profile import Profile
    from jaxring.runtime.call import CallSpec

# The algorithm of a call in codes: two ranks have no other one.
CODED = DIRECT.name


def choose(
    spec: CallSpec,
    domains: tuple[int, ...],
    hosts: tuple[int, ...],
    *,
    root: int = 0,
    interfaces: int = 1,
    processors: int = 0,
    network: str = "tcp",
    profile: Profile = COMMODITY,
) -> Choice:
    """The choice for a call among ranks with these memory domains and hosts. Raises ValueError for what cannot be done.

    ``interfaces``: of the host that has the fewest, between hosts. ``processors``: what the processes share if one host
    has them all, else 0. ``network``: how messages between hosts travel, for their price by ``profile``.
    """
    collective, ragged, apart = spec.facts.schedules_of, spec.facts.ragged, spec.half != "both"

    def pick(nbytes: int, **wishes: Any) -> Choice:
        return tuner.choose(
            collective,
            domains,
            hosts,
            nbytes,
            spec.dtype,
            ll_bytes=_native.ll_payload_bytes(),
            channels=settings().channels,
            interfaces=interfaces,
            processors=processors,
            network=network,
            profile=profile,
            spread=1.0 if spec.epilogue is None else spec.epilogue.spread_share(spec.dtype),
            own=spec.epilogue is not None and bool(spec.epilogue.further),
            root=root,
            perm=spec.perm,
            **wishes,
        )

    nbytes = spec.operand_bytes(len(domains))
    if spec.codes is not None:
        one = functools.partial(pick, spec.codes.nbytes(nbytes))
        return choose_among(one, EVERYTHING, settings().proto, CODED, spec.protocol)
    protocol = spec.protocol or ("simple" if ragged and len(set(domains)) > 1 else None)
    choice = None
    if spec.parts > 1 and spec.algorithm is None:
        choice = _chunks_choice(pick, nbytes, spec.parts, protocol)
    if choice is None:
        one = functools.partial(pick, nbytes)
        choice = choose_among(one, settings().algo, settings().proto, spec.algorithm, protocol)
    return in_one_channel(choice, ragged, apart)


def _chunks_choice(pick: Callable[..., Choice], nbytes: int, parts: int, protocol: str | None) -> Choice | None:
    """The choice for each of ``parts`` chunks of ``nbytes``: by the algorithm that moves all of them fastest.

    Chunks of a pipeline hide each other's latency, so what counts is how fast all of them get through. A protocol is
    that of a chunk's size, since the settings' or the call's may serve a chunk but not all of them at once. None where
    that protocol does not go with the algorithm.
    """
    whole = choose_among(functools.partial(pick, nbytes * parts), settings().algo)
    try:
        one = functools.partial(pick, nbytes)
        each = choose_allowed(one, settings().algo, settings().proto, whole.algorithm, protocol)
    except ValueError:
        return None
    why = f"as for {parts} chunks at once, {whole.why}"
    if each.why != whole.why:
        why += f"; for each of them, {each.why}"
    return dataclasses.replace(each, asked=asked_for(None, protocol), why=why)
