"""The profile of this kind of machine: what `jaxring tune` has measured on it, else the one that comes with jaxring."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jaxring.plan.profile_file import COMMODITY, MAX_BYTES, parse
from jaxring.topology import cache

if TYPE_CHECKING:
    import pathlib

    from jaxring.plan.profile import Profile


def file_of(kind: str) -> pathlib.Path:
    """Where the profile of a kind of machine lies in the cache."""
    return cache.folder("profiles") / f"{kind}.toml"


def read(path: pathlib.Path) -> Profile:
    """A profile's file. Raises OSError, or ValueError that names what is wrong in it."""
    with path.open(encoding="utf-8") as file:
        return parse(file.read(MAX_BYTES + 1))


def save(profile: Profile) -> pathlib.Path:
    """Has new processes on this kind of machine use the profile. Returns its file. Raises OSError."""
    return cache.save(file_of(profile.kind), profile.text())


@functools.cache
def current() -> Profile:
    """This process's profile, read once. A file that cannot be used is warned of, and the built-in one taken."""
    without = "jaxring chooses by its built-in profile; `jaxring tune` writes the file anew."
    return cache.load(file_of(cache.machine_kind()), read, without) or COMMODITY
