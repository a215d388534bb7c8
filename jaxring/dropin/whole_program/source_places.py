"""Where collectives stand in the user's program, by the metadata that XLA keeps with each instruction."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from jaxring._protobuf import Message
from jaxring.dropin.sites import is_installed, is_users

if TYPE_CHECKING:
    from collections.abc import Iterator


class Places:
    """The places in a module's program, by its StackFrameIndexProto and the OpMetadata of its instructions."""

    def __init__(self, index: Message) -> None:
        self._index = index
        self._places: dict[int, str] = {}

    def site(self, metadata: Message) -> str:
        """Where the program says so: ``file.py:line (op name)``, "" for an instruction without metadata."""
        return _site(self._place(metadata), metadata.text(2))

    def sites(self, metadata: Message, operands: list[Message]) -> list[str]:
        """Those of a collective of several operands, for each of them. ``operands``: of what has made them.

        Where XLA combines collectives it joins their names and keeps one place. An operand is made where its collective
        stands, or a little before.
        """
        names = _split(metadata.text(2), len(operands)) or [each.text(2) for each in operands]
        own = self._place(metadata)
        return [_site(self._place(made) or own, name) for made, name in zip(operands, names, strict=True)]

    def _place(self, metadata: Message) -> str:
        """``file.py:line``: the innermost of the user's frames, in a library only where there is no other."""
        place = self._place_of_frame(metadata.number(15))
        if not place and metadata.text(3):
            place = f"{_base(metadata.text(3))}:{metadata.number(4)}"
        return place

    def _place_of_frame(self, frame: int) -> str:
        if frame not in self._places:
            frames = sorted(self._frames(frame), key=lambda each: is_installed(each[0]))
            self._places[frame] = f"{_base(frames[0][0])}:{frames[0][1]}" if frames else ""
        return self._places[frame]

    def _frames(self, frame: int) -> Iterator[tuple[str, int]]:
        """The user's places, the innermost first."""
        files, locations, frames = self._stack
        seen = set()
        while 0 < frame <= len(frames) and frame not in seen:
            seen.add(frame)
            made = Message(frames[frame - 1])
            location, frame = made.number(1), made.number(2)
            if 0 < location <= len(locations):
                where = Message(locations[location - 1])
                file, line = where.number(1), where.number(3)
                if 0 < file <= len(files) and is_users(name := files[file - 1].decode(errors="replace")):
                    yield name, line

    @functools.cached_property
    def _stack(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """File names; file and line of each location; location and parent of each frame. All are counted from 1."""
        return list(self._index.all(1)), list(self._index.all(3)), list(self._index.all(4))


def _site(place: str, name: str) -> str:
    return f"{place} ({name})" if place and name else place or name


def _split(name: str, count: int) -> list[str]:
    """The names of ``count`` instructions that XLA has combined: of a/(b:c/d) a/b and a/c/d. [] where unclear."""
    begin, depth = len(name), 0
    cuts = []
    for i in reversed(range(len(name))):
        depth += (name[i] == ")") - (name[i] == "(")
        if depth == 1 and name[i] == ":":
            cuts.append(i)
        if depth == 0:
            begin = i
            break
    if not (cuts and name.endswith(")") and (begin == 0 or name[begin - 1] == "/")):
        return [name] * count
    ends = [begin, *reversed(cuts), len(name) - 1]
    parts = [name[:begin] + name[i + 1 : j] for i, j in itertools.pairwise(ends)]
    return parts if len(parts) == count else []


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]
