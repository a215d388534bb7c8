"""The pages of docs/reference/ say what the code knows, and every public name is on one of them."""

from __future__ import annotations

import re
import types

import pytest

import jaxring
from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Schedule, ScheduleError, Spec
from tests import ROOT
from tools import reference_pages

PAGES = ROOT / "docs" / "reference"


def test_what_is_written_is_up_to_date() -> None:
    old = [path.name for path, text in reference_pages.pages() if path.read_text(encoding="utf-8") != text]
    assert old == [], "make format"


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "steps", "share"),
    [
        # 2 (n - 1) steps of an n-th each, and log2(n) exchanges each way.
        ("all_reduce", "ring", 8, 14, 14 / 8),
        ("all_reduce", "halving_doubling", 8, 6, 14 / 8),
        ("all_reduce", "oneshot", 5, 1, 4.0),
        ("all_gather", "ring", 4, 3, 3.0),
        ("broadcast", "tree", 8, 3, 1.0),
    ],
)
def test_costs_are_those_of_the_textbook(collective: str, algorithm: str, ranks: int, steps: int, share: float) -> None:
    assert reference_pages.cost(build(Spec(collective, ranks, algorithm))) == (steps, share)


def test_a_message_that_nobody_sends_is_an_error() -> None:
    ring = build(Spec("all_reduce", 4, "ring"))
    mute = Schedule(ring.spec, ring.pieces, ring.nlanes, 0, lambda rank: ring.lanes(rank) if rank else [])
    with pytest.raises(ScheduleError, match="nobody sends"):
        reference_pages.cost(mute)


def test_every_public_name_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES.glob("*.md"))
    listed = set(re.findall(r"\bjaxring\.(\w+)", text)) | set(re.findall(r"`(\w+_start)`", text))
    errors = {name for name, value in vars(jaxring.errors).items() if isinstance(value, type)}
    assert set(jaxring.__all__) - listed - errors - {"__version__"} == set()


def test_the_functions_of_public_modules_are_shown() -> None:
    text = "".join(page.read_text() for page in PAGES.glob("*.md"))
    modules = [name for name in jaxring.__all__ if isinstance(getattr(jaxring, name), types.ModuleType)]
    assert "epilogues" in modules
    for name in set(modules) - {"lax"}:  # its names are jax.lax's
        shown = set(re.findall(rf"^::: jaxring\.{name}\.(\w+)", text, re.M))
        for members in re.findall(rf"^::: jaxring\.{name}\n.*members: \[(.*?)\]", text, re.M):
            shown |= set(members.split(", "))
        assert set(getattr(jaxring, name).__all__) - shown == set(), name


def test_each_command_says_what_it_does_and_its_defaults() -> None:
    text = (PAGES / "cli.md").read_text()
    assert not re.findall(r"^## jaxring [a-z ]+\n\n(?![A-Z])", text, re.M)
    assert "%(" not in text
