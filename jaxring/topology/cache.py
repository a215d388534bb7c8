"""The cache of what was measured on a kind of machine: a folder for each sort of file, and a file for each kind in it.

The commands that measure write the files, and each process that starts reads those of its own kind of machine.
"""

from __future__ import annotations

import logging
import os
import pathlib
import platform
import re
import tempfile
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("jaxring.tune")
Content = TypeVar("Content")

# What the kernel calls a processor: x86's name, or the numbers of Arm's implementer and part.
_NAMES = ("model name", "CPU implementer", "CPU part")


def machine_kind() -> str:
    """Its processor and how many of them there are, such as "x86_64-intel-xeon-platinum-8480c-112"."""
    found: dict[str, str] = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value)
    except OSError:
        pass
    words = " ".join([platform.machine(), *(found.get(name, "") for name in _NAMES), str(os.cpu_count())])
    plain = re.sub(r"\(r\)|\(tm\)|cpu|@.*ghz", " ", words.lower())
    return re.sub(r"[^a-z0-9_]+", "-", plain).strip("-")[:96]


def folder(name: str) -> pathlib.Path:
    """The folder of a sort of files: in $XDG_CACHE_HOME, by default ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~/.cache").expanduser()
    return pathlib.Path(cache) / "jaxring" / name


def save(path: pathlib.Path, text: str) -> pathlib.Path:
    """Writes a file of the cache, and returns its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, since processes that start meanwhile read it.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(text)
    pathlib.Path(file.name).replace(path)
    return path


def load(path: pathlib.Path, read: Callable[[pathlib.Path], Content | None], without: str) -> Content | None:
    """What ``read`` makes of a file of the cache; None without the file.

    A file at which it raises OSError or ValueError is warned of; ``without`` says what that leads to, and what to do.
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is not used: %s. %s", path, error, without)
        return None
