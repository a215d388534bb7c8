"""Where collectives stand in the user's program, by the metadata that XLA keeps with each instruction."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from jaxring.dropin.sites import is_installed, is_users

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.dropin.whole_program.wire import Message


class Places:
    """The places in a module's program, by its StackFrameIndexProto and the OpMetadata of its instructions."""

    def __init__(self, index: Message) -> None:
        self._index = index

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
        frames = list(self._frames(metadata.number(15)))
        if not frames and metadata.text(3):
            frames = [(metadata.text(3), metadata.number(4))]
        for file, line in sorted(frames, key=lambda frame: is_installed(frame[0])):
            return f"{_base(file)}:{line}"
        return ""

    def _frames(self, frame: int) -> Iterator[tuple[str, int]]:
        """The user's places, the innermost first."""
        files, locations, frames = self._stack
        seen = set()
        while 0 < frame <= len(frames) and frame not in seen:
            seen.add(frame)
            location, frame = frames[frame - 1]
            if 0 < location <= len(locations):
                file, line = locations[location - 1]
                if 0 < file <= len(files) and is_users(files[file - 1]):
                    yield files[file - 1], line

    @functools.cached_property
    def _stack(self) -> tuple[list[str], list[tuple[int, int]], list[tuple[int, int]]]:
        """File names; file and line of each location; location and parent of each frame. All are counted from 1."""
        index = self._index
        files = [name.decode(errors="replace") for name in index.all(1)]
        locations = [(each.number(1), each.number(3)) for each in index.messages(3)]
        return files, locations, [(each.number(1), each.number(2)) for each in index.messages(4)]


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
