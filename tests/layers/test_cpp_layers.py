"""The folders of ffi/ are layers: no #include leads from a lower one to a higher one, or round in a circle."""

from __future__ import annotations

import collections
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FFI = ROOT / "ffi"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# What is included with quotes and is not ours: XLA's headers, and the header that CMake makes.
OTHERS = re.compile(r"xla/ffi/api/\w+\.h|jaxring_config\.h")

# (folder, folder that it uses) -> "file includes file", for each such line.
Arrows = dict[tuple[str, str], list[str]]


def layers() -> list[list[str]]:
    return tomllib.loads((Path(__file__).parent / "layers.toml").read_text())["cpp"]["layers"]


def sources() -> list[Path]:
    return sorted(path for path in FFI.rglob("*") if path.suffix in (".cc", ".cu", ".cuh", ".h"))


def folder(path: str) -> str:
    return path.rpartition("/")[0]


def includes() -> list[tuple[str, str]]:
    """(file, what it includes with quotes), files by their paths in ffi/."""
    return [
        (path.relative_to(FFI).as_posix(), name) for path in sources() for name in INCLUDE.findall(path.read_text())
    ]


def arrows() -> Arrows:
    found: Arrows = collections.defaultdict(list)
    for path, name in includes():
        if not OTHERS.fullmatch(name) and folder(path) != folder(name):
            found[folder(path), folder(name)].append(f"{path} includes {name}")
    return found


def forbidden(order: list[list[str]], found: Arrows) -> list[str]:
    """The lines that do not lead downwards, and folders that have no place in the order."""
    level = {name: number for number, layer in enumerate(order) for name in layer}
    wrong = [f"{name} is in no layer" for name in sorted({name for arrow in found for name in arrow} - level.keys())]
    for (user, used), lines in sorted(found.items()):
        if level.get(user, len(order)) <= level.get(used, -1):
            wrong += lines
    return wrong


def test_includes_are_paths_in_the_one_root() -> None:
    wrong = [
        f"{path}: {name}" for path, name in includes() if not OTHERS.fullmatch(name) and not (FFI / name).is_file()
    ]
    assert not wrong, f"includes that are no paths of files in ffi/: {wrong}"


def test_each_header_has_a_name_of_its_own() -> None:
    named = collections.defaultdict(list)
    for path in sources():
        if path.suffix in (".h", ".cuh"):
            named[path.name].append(path.relative_to(FFI).as_posix())
    twice = {name: paths for name, paths in named.items() if len(paths) > 1}
    assert not twice, f"headers of one name in several folders: {twice}"


def test_the_rules_name_each_folder_once() -> None:
    named = [name for layer in layers() for name in layer]
    assert sorted(named) == sorted({path.relative_to(FFI).parent.as_posix() for path in sources()})


def test_no_include_leads_upwards() -> None:
    assert forbidden(layers(), arrows()) == []


def test_an_include_that_is_turned_round_is_found() -> None:
    order, found = layers(), arrows()
    assert len(found) > 50
    for (user, used), lines in found.items():
        turned = {arrow: given for arrow, given in found.items() if arrow != (user, used)}
        turned[used, user] = [f"{line}, turned round" for line in lines]
        assert forbidden(order, turned) == turned[used, user]


def test_an_include_of_a_sibling_and_a_new_folder_are_found() -> None:
    order, found = layers(), arrows()
    siblings = {**found, ("transport/verbs", "transport/tcp"): ["verbs.h includes tcp.h"]}
    assert forbidden(order, siblings) == ["verbs.h includes tcp.h"]
    assert forbidden(order, {**found, ("engine", "attic"): ["engine.h includes attic.h"]}) == ["attic is in no layer"]
