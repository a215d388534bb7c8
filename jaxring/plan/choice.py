"""A tuner's choice and its reasons, and the choice among what the settings allow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.plan.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jaxring.plan.cost import Price


def figures(us: float) -> str:
    """A time for readers: four digits or all before the point, and no exponent."""
    return f"{us:.4g}" if us < 1000 else f"{us:,.0f}"


@dataclasses.dataclass(frozen=True)
class Detail:
    """What is known of a candidate: its prediction, and its time in us as measured on this kind of machine, or None."""

    predicted: Price
    measured: float | None


@dataclasses.dataclass(frozen=True)
class Choice:
    """``candidates``: ("algorithm/protocol", us), cheapest first. ``asked``: what the call asked for.

    The times are those that were compared: predictions, or measurements where every candidate has been measured.
    ``details`` has what is known of each; ``light`` is a bound in us below the time of any algorithm. Choices for GPUs
    have neither. ``one_shot``: on GPUs, by the one-shot all-reduce, which accesses no other rank's buffers.
    """

    algorithm: str
    protocol: str
    channels: int
    why: str
    candidates: list[tuple[str, float]]
    asked: str = ""
    details: Mapping[str, Detail] = dataclasses.field(default_factory=dict)
    light: float = 0.0
    one_shot: bool = False

    @property
    def prediction(self) -> str:
        """What the chosen candidate is predicted to take, and what limits it, in words; empty for GPUs."""
        name, us = self.candidates[0] if self.candidates else ("", 0.0)
        detail = self.details.get(name)
        if detail is None:
            return ""
        measured = "" if detail.measured is None else f", measured {figures(detail.measured)} us"
        share = f", {self.light / us:.0%} of the speed of light" if us else ""
        return f"predicted {figures(detail.predicted.us)} us, limited by {detail.predicted.limit}{measured}{share}"

    @property
    def reason(self) -> str:
        """Why it was taken, in words."""
        return f"{self.asked} asked for; {self.why}" if self.asked else self.why


def in_one_channel(choice: Choice, ragged: bool, apart: bool) -> Choice:
    """The choice as calls take it that have one channel: ragged ones, and the halves of a message, which run ``apart``.

    A message of a lone rank to itself travels by ``simple``, since neither half knows the other's memory.
    """
    if apart and choice.protocol == "memory":
        choice = dataclasses.replace(choice, protocol="simple")
    return dataclasses.replace(choice, channels=1) if ragged or apart else choice


def asked_for(algorithm: str | None, protocol: str | None) -> str:
    """What a call asks for, in words; empty where it leaves the choice."""
    asked = (("algorithm", algorithm), ("protocol", protocol))
    return " and ".join(f"{what} {value!r}" for what, value in asked if value)


def choose_among(
    pick: Callable[..., Choice],
    from_algorithms: Selection = EVERYTHING,
    from_protocols: Selection = EVERYTHING,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> Choice:
    """The choice of ``pick`` among what the settings allow.

    It takes ``algorithm``, ``protocol``, ``unwanted``, ``unwanted_protocols`` and ``also``, as `choose` does.

    A setting holds for every collective of a job. A collective that none of the allowed algorithms can run therefore
    runs with another one, and the reason says so. A setting never overrules a call's own ``algorithm`` or ``protocol``.
    """
    if not _applied(from_algorithms, from_protocols, algorithm, protocol):
        return pick(algorithm=algorithm, protocol=protocol)
    try:
        return choose_allowed(pick, from_algorithms, from_protocols, algorithm, protocol)
    except ValueError as nothing:
        free = pick(algorithm=algorithm, protocol=protocol)
        return dataclasses.replace(free, why=f"{nothing}; {free.why}")


def choose_allowed(
    pick: Callable[..., Choice],
    from_algorithms: Selection,
    from_protocols: Selection,
    algorithm: str | None,
    protocol: str | None,
) -> Choice:
    """As `choose_among`, but raises ValueError where the settings allow nothing that serves."""
    applied = _applied(from_algorithms, from_protocols, algorithm, protocol)
    if not applied:
        return pick(algorithm=algorithm, protocol=protocol)
    names = (algorithm,) if algorithm else from_algorithms.only or (None,)
    kinds = (protocol,) if protocol else from_protocols.only or (None,)
    best: Choice | None = None
    refusal = ""
    for name in names:
        for kind in kinds:
            try:
                choice = pick(
                    algorithm=name,
                    protocol=kind,
                    unwanted=from_algorithms.but,
                    unwanted_protocols=from_protocols.but,
                    also=from_algorithms.also,
                )
            except ValueError as error:
                refusal = refusal or str(error)
                continue
            if best is None or choice.candidates[0][1] < best.candidates[0][1]:
                best = choice
    if best is None:
        raise ValueError(f"{applied} leaves nothing that serves ({refusal})")
    # A choice among the names that a setting allows is no request for one of them.
    return dataclasses.replace(best, asked=asked_for(algorithm, protocol), why=f"with {applied}, {best.why}")


def _applied(from_algorithms: Selection, from_protocols: Selection, algorithm: str | None, protocol: str | None) -> str:
    """The settings that hold for a call, in words; empty where there are none."""
    settings = (("JAXRING_ALGO", from_algorithms, algorithm), ("JAXRING_PROTO", from_protocols, protocol))
    return " and ".join(
        f"{variable}={selection}" for variable, selection, asked in settings if selection and asked is None
    )
