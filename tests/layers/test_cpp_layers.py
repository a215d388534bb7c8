"""The folders of ffi/ are layers: no #include leads from a lower one to a higher one, or round in a circle."""

from __future__ import annotations

import collections
import re
from pathlib import Path

from tests import ROOT
from tests.layers.rules import Arrows, assert_each_turned_round_is_found, forbidden, layers

FFI = ROOT / "ffi"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# What is included with quotes and is not ours: XLA's headers, and the header that CMake makes.
OTHERS = re.compile(r"xla/ffi/api/\w+\.h|jaxring_(config|network_abi)\.h")


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
    named = [name for layer in layers("cpp") for name in layer]
    assert sorted(named) == sorted({path.relative_to(FFI).parent.as_posix() for path in sources()})


def test_what_two_modules_share_is_made_of_the_headers_that_its_name_counts() -> None:
    included = collections.defaultdict(list)
    for path, name in includes():
        included[path].append(name)
    reached, rest = set(), ["bind/shared_network.h"]
    while rest:
        header = rest.pop()
        if header not in reached and not OTHERS.fullmatch(header):
            reached.add(header)
            rest += included[header]
    assert "network/network.h" in reached
    script = (ROOT / "cmake" / "network_abi.cmake").read_text()
    counted = tuple(re.findall(r'"\$\{SOURCE\}/([\w/]+\.h|[\w/]+/(?=\*\.h"))', script))
    assert len(counted) == 4
    assert sorted(header for header in reached if not header.startswith(counted)) == []


def test_no_include_leads_upwards() -> None:
    assert forbidden(layers("cpp"), arrows()) == []


def test_an_include_that_is_turned_round_is_found() -> None:
    found = arrows()
    assert len(found) > 50
    assert_each_turned_round_is_found(layers("cpp"), found)


def test_an_include_of_a_sibling_and_a_new_folder_are_found() -> None:
    order, found = layers("cpp"), arrows()
    siblings = {**found, ("transport/verbs", "transport/tcp"): ["verbs.h includes tcp.h"]}
    assert forbidden(order, siblings) == ["verbs.h includes tcp.h"]
    assert forbidden(order, {**found, ("engine", "attic"): ["engine.h includes attic.h"]}) == ["attic is in no layer"]
