"""The layers that layers.toml names, and what does not keep to them, for Python's imports and C++'s includes alike."""

from __future__ import annotations

import tomllib

from tests import ROOT

# (user, what it uses) -> a line in words for each place where it does.
Arrows = dict[tuple[str, str], list[str]]


def layers(table: str) -> list[list[str]]:
    """The layers of a table of the rule file, the lowest first."""
    found: list[list[str]] = tomllib.loads((ROOT / "tests/layers/layers.toml").read_text())[table]["layers"]
    return found


def forbidden(order: list[list[str]], found: Arrows) -> list[str]:
    """The lines that do not lead downward, and users and used ones that have no place in the order."""
    level = {name: number for number, layer in enumerate(order) for name in layer}
    wrong = [f"{name} is in no layer" for name in sorted({name for arrow in found for name in arrow} - level.keys())]
    for (user, used), lines in sorted(found.items()):
        if level.get(user, len(order)) <= level.get(used, -1):
            wrong += lines
    return wrong


def assert_each_turned_round_is_found(order: list[list[str]], found: Arrows) -> None:
    """The mutation of a layer test: each arrow that is turned round is named, and nothing else."""
    for (user, used), lines in found.items():
        turned = {arrow: given for arrow, given in found.items() if arrow != (user, used)}
        turned[used, user] = [f"{line}, turned round" for line in lines]
        assert forbidden(order, turned) == turned[used, user]
