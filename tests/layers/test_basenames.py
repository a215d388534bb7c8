"""A file's name has one meaning: files of one name in several folders are about one thing, as layers.toml says."""

from __future__ import annotations

import collections
import pathlib
import tomllib
from typing import TYPE_CHECKING

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOTS = ("benchmarks", "examples", "ffi", "fuzz", "jaxring", "tests", "tools")
SUFFIXES = {".cc", ".cu", ".py"}
# They have the name of what they measure, show, fuzz, test or are started by, and Python's own names.
OF_SOMETHING = ("benchmarks", "examples", "fuzz")
ALSO = ("__init__.py", "__main__.py", "conftest.py")


def wrong(files: Iterable[pathlib.PurePath], reasons: dict[str, str]) -> list[str]:
    """Names of several files without a reason, and reasons for a name of one file."""
    named = collections.defaultdict(list)
    for path in files:
        of_another = path.parts[0] in OF_SOMETHING or path.name in ALSO or path.stem.endswith("_test")
        if not (of_another or path.name.startswith(("test_", "worker_"))):
            named[path.name].append(path.as_posix())
    shared = {name: sorted(paths) for name, paths in named.items() if len(paths) > 1}
    return [
        *(f"{name} has several meanings: {', '.join(shared[name])}" for name in sorted(shared.keys() - reasons.keys())),
        *(f"{name} is one file: it needs no reason" for name in sorted(reasons.keys() - shared.keys())),
        *(f"{name} has no reason" for name, reason in reasons.items() if len(reason.split()) < 3),
    ]


def test_files_of_one_name_are_about_one_thing():
    reasons = tomllib.loads((ROOT / "tests/layers/layers.toml").read_text())["names"]
    found = [path.relative_to(ROOT) for root in ROOTS for path in (ROOT / root).rglob("*") if path.suffix in SUFFIXES]
    assert wrong(found, reasons) == []


def test_what_is_wrong_is_found():
    files = [pathlib.PurePath(name) for name in ("ffi/a/moves.cc", "ffi/b/moves.cc", "jaxring/a.py", "fuzz/moves.cc")]
    assert wrong(files, {}) == ["moves.cc has several meanings: ffi/a/moves.cc, ffi/b/moves.cc"]
    assert wrong(files, {"moves.cc": "what is moved"}) == []
    assert wrong(files, {"moves.cc": " "}) == ["moves.cc has no reason"]
    assert wrong(files[1:], {"moves.cc": "what is moved"}) == ["moves.cc is one file: it needs no reason"]
    tests = [
        "tests/a/test_a.py",
        "tests/b/test_a.py",
        "tests/a/worker_a.py",
        "tests/b/worker_a.py",
        "tests/__init__.py",
    ]
    assert wrong(map(pathlib.PurePath, [*tests, "jaxring/__init__.py"]), {}) == []
