"""The profile of this kind of machine: what `jaxring tune` has measured on it, else the one that comes with jaxring."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import platform
import re
import tempfile
from typing import TYPE_CHECKING

from jaxring.plan.profile_file import COMMODITY, MAX_BYTES, parse

if TYPE_CHECKING:
    from jaxring.plan.profile import Profile

log = logging.getLogger("jaxring.tune")

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


def file_of(kind: str) -> pathlib.Path:
    """Where the profile of a kind of machine lies: in $XDG_CACHE_HOME, by default ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~/.cache").expanduser()
    return pathlib.Path(cache) / "jaxring" / "profiles" / f"{kind}.toml"


def read(path: pathlib.Path) -> Profile:
    """A profile's file. Raises OSError, or ValueError that names what is wrong in it."""
    with path.open(encoding="utf-8") as file:
        return parse(file.read(MAX_BYTES + 1))


def save(profile: Profile) -> pathlib.Path:
    """Has new processes on this kind of machine use the profile. Returns its file. Raises OSError."""
    path = file_of(profile.kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, since processes that start meanwhile read it.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(profile.text())
    pathlib.Path(file.name).replace(path)
    return path


@functools.cache
def current() -> Profile:
    """This process's profile, read once. A file that cannot be used is warned of, and the built-in one taken."""
    path = file_of(machine_kind())
    try:
        return read(path)
    except FileNotFoundError:
        return COMMODITY
    except (OSError, ValueError) as error:
        log.warning(
            "%s is not used: %s. jaxring chooses by its built-in profile; `jaxring tune` writes the file anew.",
            path,
            error,
        )
        return COMMODITY
