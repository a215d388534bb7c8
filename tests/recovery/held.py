"""What this process holds of the system: open descriptors, sockets, mapped memory of links, resident memory."""

from __future__ import annotations

import contextlib
import pathlib
import re
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESS = pathlib.Path("/proc/self")
LIMIT_S = 60.0


class Held(NamedTuple):
    """``shared``: mappings of shared memory that has no file, as that of links between processes of one host."""

    descriptors: int
    sockets: int
    shared: int


def held() -> Held:
    """What is open and mapped now."""
    opened = []
    for descriptor in (PROCESS / "fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            opened.append(str(descriptor.readlink()))
    maps = (PROCESS / "maps").read_text(encoding="utf-8")
    return Held(len(opened), sum(each.startswith("socket:") for each in opened), maps.count("/memfd:"))


def resident(kind: str) -> int:
    """Bytes of this process's memory that are in RAM: "RssAnon", its own, or "RssShmem", shared with others."""
    status = (PROCESS / "status").read_text(encoding="utf-8")
    return 1024 * int(re.findall(rf"^{kind}:\s+(\d+) kB$", status, re.MULTILINE)[0])


def settled() -> Held:
    """`held`, once nothing has changed for half a second: what threads need for a moment only is not in it."""
    began = since = time.monotonic()
    found = held()
    while time.monotonic() - since < 0.5:
        assert since - began < LIMIT_S, found
        time.sleep(0.01)
        now = held()
        if now != found:
            found, since = now, time.monotonic()
    return found


def soon(holds: Callable[[], bool], said: Callable[[], object]) -> None:
    """Waits until ``holds()``, as threads let go a moment later. AssertionError with ``said()`` where it never does."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < LIMIT_S, said()
        time.sleep(0.01)
