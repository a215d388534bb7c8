"""A file of code has about 300 lines at most, or layers.toml says why it is not split; those may only get shorter."""

from __future__ import annotations

import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 330
# What an exception may have above its file's length, so that not each edit of the file changes the list.
ROOM = 10
SUFFIXES = (".cc", ".cu", ".h", ".py", ".sh")


def wrong(lengths: Mapping[str, int], said: Mapping[str, Any]) -> list[str]:
    """Long files without a reason or longer than theirs says, and reasons that are not needed so any more."""
    long = {name: lines for name, lines in lengths.items() if lines > MOST}
    found = [f"{name} has {long[name]} lines: split it" for name in sorted(long.keys() - said.keys())]
    for name, entry in said.items():
        if name not in long:
            found.append(f"{name} is short, or gone: remove it from layers.toml")
        elif long[name] > entry["most"]:
            found.append(f"{name} has grown to {long[name]} lines from {entry['most']}: split it")
        elif long[name] <= entry["most"] - ROOM:
            found.append(f"{name} has {long[name]} lines: say so in layers.toml, in place of {entry['most']}")
        if len(entry["why"].split()) < 4:
            found.append(f"{name} has no reason")
    return found


def test_long_files_say_why():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.splitlines() if name.endswith(SUFFIXES) and (ROOT / name).is_file()]
    lengths = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in files}
    said = tomllib.loads((ROOT / "tests/layers/layers.toml").read_text())["long"]
    assert wrong(lengths, said) == []


def test_what_is_wrong_is_found():
    said = {"a.py": {"most": MOST + 20, "why": "one idea, and its cases"}}
    assert wrong({"a.py": MOST + 20, "b.cc": MOST}, said) == []
    assert wrong({"a.py": MOST + 20}, {}) == [f"a.py has {MOST + 20} lines: split it"]
    assert wrong({"a.py": MOST + 21}, said) == [f"a.py has grown to {MOST + 21} lines from {MOST + 20}: split it"]
    assert wrong({"a.py": MOST + 10}, said) == [
        f"a.py has {MOST + 10} lines: say so in layers.toml, in place of {MOST + 20}"
    ]
    assert wrong({"a.py": MOST}, said) == ["a.py is short, or gone: remove it from layers.toml"]
    assert wrong({"a.py": MOST + 20}, {"a.py": {"most": MOST + 20, "why": "so"}}) == ["a.py has no reason"]
