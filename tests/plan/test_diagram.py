"""Drawings of schedules: every step and every message of them, in an order in which they can happen."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import pytest

from jaxring.cli import main
from jaxring.plan import diagram, user
from jaxring.plan.algorithms import build, custom
from jaxring.plan.schedule import Buffer, Chunk, Kind, Peer, ScheduleError, Spec, Step
from jaxring.plan.show import show_step
from tests import ROOT

SVG = "{http://www.w3.org/2000/svg}"
SPECS = [
    Spec("all_reduce", 4, "ring"),
    Spec("all_reduce", 8, "tree"),
    Spec("all_reduce", 8, "halving_doubling"),
    Spec("all_reduce", 8, "hier_direct", placement=(0, 0, 1, 1, 2, 2, 3, 3)),
    Spec("all_gather", 6, "direct", channels=2),
    Spec("all_to_all", 8, "pxn", placement=(0, 0, 0, 0, 1, 1, 1, 1)),
    Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)),
    Spec("broadcast", 6, "tree", root=2),
]


def drawn(text):
    """The titles of the boxes, each with its place, and the lines of the messages: from, to."""
    root = ET.fromstring(text)
    boxes = {}
    for group in root.iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        left, top = int(box.get("x")), int(box.get("y"))
        boxes[left, top + 9] = (group.find(f"{SVG}title").text, left + int(box.get("width")))
    lines = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke") == "#0b6bcb"]
    ends = [
        tuple(map(int, re.match(r"M(\d+) (\d+) L(\d+) (\d+) ", line).groups())) for line in lines[1:]
    ]  # not the key's
    return boxes, ends


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_step_and_message_is_drawn_from_left_to_right(spec):
    schedule = build(spec)
    boxes, messages = drawn(diagram.svg(schedule))
    steps = [(rank, step) for rank in range(spec.nranks) for lane in schedule.lanes(rank) for step in lane]
    assert sorted(title for title, _ in boxes.values()) == sorted(show_step(rank, step) for rank, step in steps)
    assert len(messages) == sum(not peer.memory for _, step in steps for peer in step.send)
    for x1, y1, x2, y2 in messages:
        assert x1 < x2
        assert boxes[x2, y2][0].startswith(("recv", "gather")), "it ends at a step that receives"
        assert (x1, y1) in {(right, at[1]) for at, (_, right) in boxes.items()}, "it begins at a step"


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_key_has_every_colour_of_a_box(spec):
    root = ET.fromstring(diagram.svg(build(spec)))
    boxes, key = (
        {box.get(which) for box in root.iterfind(path) for which in ("fill", "stroke")}
        for path in (f"{SVG}g/{SVG}rect", f"{SVG}rect")
    )
    assert boxes <= key


def test_a_lane_and_what_cannot_be_drawn():
    schedule = build(Spec("all_reduce", 8, "tree"))
    text = diagram.svg(schedule, [1])
    assert "lane 1" in text
    assert "lane 0" not in text
    with pytest.raises(ValueError, match="lane 2 is none of the schedule's, which are 0 to 1"):
        diagram.svg(schedule, [2])
    with pytest.raises(ValueError, match="at most 64 ranks, and the schedule has 65"):
        diagram.svg(build(Spec("all_reduce", 65, "ring")))


def test_a_message_that_nobody_sends_is_found_before():
    """So a drawing never leaves steps out: what is drawn has been verified."""

    def waits(rank):
        return [[Step(Kind.MOVE, dst=Chunk(Buffer.OUTPUT, 0), recv=(Peer(1 - rank),))]]

    with pytest.raises(ScheduleError):
        custom(Spec("all_reduce", 2, "waits"), waits, pieces=1)


def chain_of_the_page():
    page = (ROOT / "docs/howto/own-algorithm.md").read_text(encoding="utf-8")
    return re.search(r'^```python title="chain.py"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize(
    ("name", "options"), [("ring", "-n 4x1"), ("tree", "-n 8x1"), ("chain", "-n 4x1 --import chain")]
)
def test_the_pictures_of_the_page_are_the_command_s(name, options, tmp_path, monkeypatch, capsys):
    (tmp_path / "chain.py").write_text(chain_of_the_page(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # What --import adds to.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user, "_registered", {})
    try:
        assert main(["explain", "all_reduce", *options.split(), "--algorithm", name, "--svg", "out.svg"]) == 0
    finally:
        sys.modules.pop("chain", None)
    capsys.readouterr()
    assert (tmp_path / "out.svg").read_text() == (ROOT / f"docs/howto/schedule-{name}.svg").read_text()
