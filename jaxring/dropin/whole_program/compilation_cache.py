"""What tells programs of the persistent compilation cache apart that were compiled with whole programs in force."""

from __future__ import annotations

import hashlib
import pathlib

from jaxring.settings import settings
from jaxring.world.identity import version

PACKAGE = pathlib.Path(__file__).parents[2]
# What the calls in a compiled program depend on. The version number is the same in all source trees between two
# releases, and a program that another one of them has compiled may hold calls that this one does not understand.
WRITERS = ("_protobuf.py", "dropin", "plan/collectives.py", "plan/dtypes.py", "runtime/call.py", "tracing/lowering")


def cache_key() -> str:
    """The same on all hosts that have the same jaxring, set up alike."""
    return f"jaxring {version()} {digest(PACKAGE)} whole program, timeout {settings().timeout}"


def digest(package: pathlib.Path) -> str:
    """A digest of the sources that write calls. Where there are only compiled ones the version has to do."""
    made = hashlib.blake2b(digest_size=8)
    for name in WRITERS:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else filter(pathlib.Path.is_file, [path]):
            content = file.read_bytes()
            made.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
            made.update(content)
    return made.hexdigest()
