"""A folder has about 20 files at most, or layers.toml says why it is not split."""

from __future__ import annotations

import collections
import pathlib
import subprocess
import tomllib
from typing import TYPE_CHECKING

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 20


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
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert wrong(map(pathlib.PurePath, listed.splitlines()), reasons) == []


def test_what_is_wrong_is_found():
    files = [pathlib.PurePath(f"ffi/a/{number}.cc") for number in range(LIMIT + 1)]
    assert wrong(files, {}) == [f"ffi/a has {LIMIT + 1} files: split it"]
    assert wrong(files[1:], {}) == wrong(files, {"ffi/a": "why"}) == []
    assert wrong(files[1:], {"ffi/a": "why"}) == [f"ffi/a has {LIMIT} files: it needs no reason"]
    assert wrong(files, {"ffi/a": " "}) == ["ffi/a has no reason"]
