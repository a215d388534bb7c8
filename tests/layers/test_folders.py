"""A folder has about 20 files at most, or layers.toml says why it is not split."""

from __future__ import annotations

import collections
import pathlib
import tomllib
from typing import TYPE_CHECKING

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 20
ROOTS = ("benchmarks", "ffi", "fuzz", "jaxring", "tests", "tools")
SOURCES = {".cc", ".cu", ".h", ".py"}


def wrong(files: Iterable[pathlib.PurePath], reasons: dict[str, str]) -> list[str]:
    """Large folders without a reason, and reasons without a large folder."""
    count = collections.Counter(str(path.parent) for path in files if path.name != "__init__.py")
    large = {folder for folder, number in count.items() if number > LIMIT}
    return [
        *(f"{folder} has {count[folder]} files: split it" for folder in sorted(large - reasons.keys())),
        *(f"{folder} has {count[folder]} files: it needs no reason" for folder in sorted(reasons.keys() - large)),
        *(f"{folder} has no reason" for folder, reason in reasons.items() if not reason.strip()),
    ]


def test_large_folders_say_why():
    reasons = tomllib.loads((ROOT / "tests/layers/layers.toml").read_text())["large"]
    found = [path.relative_to(ROOT) for root in ROOTS for path in (ROOT / root).rglob("*") if path.suffix in SOURCES]
    assert wrong(found, reasons) == []


def test_what_is_wrong_is_found():
    files = [pathlib.PurePath(f"ffi/a/{number}.cc") for number in range(LIMIT + 1)]
    assert wrong(files, {}) == [f"ffi/a has {LIMIT + 1} files: split it"]
    assert wrong(files[1:], {}) == wrong(files, {"ffi/a": "why"}) == []
    assert wrong(files[1:], {"ffi/a": "why"}) == [f"ffi/a has {LIMIT} files: it needs no reason"]
    assert wrong(files, {"ffi/a": " "}) == ["ffi/a has no reason"]
