"""Which package may import which: layers.toml names the layers, and imports go from a higher one to a lower one."""

from __future__ import annotations

import ast
import collections
import pathlib

import pytest

from tests import ROOT
from tests.layers.rules import Arrows, assert_each_turned_round_is_found, forbidden, layers

NAMED = {name for layer in layers("python") for name in layer}


def modules() -> dict[str, pathlib.Path]:
    """The modules of the package and of the studies by their dotted names."""
    found = {}
    for path in sorted(path for folder in ("benchmarks", "jaxring") for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(text: str, known: set[str]) -> set[str]:
    """The modules of these that a file imports, anywhere in it; also those that are only for types."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in names}
    return {name for name in found if name.split(".")[0] in ("benchmarks", "jaxring")}


def unit(module: str) -> str:
    """What the rule file names: the longest of the module's name and its packages' that it lists."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in NAMED:
            return ".".join(parts[:length])
    raise AssertionError(f"layers.toml names no layer for {module}")


def arrows(edges: dict[str, set[str]]) -> Arrows:
    """The imports between units."""
    found: Arrows = collections.defaultdict(list)
    for module, targets in sorted(edges.items()):
        for target in sorted(targets):
            if unit(module) != unit(target):
                found[unit(module), unit(target)].append(f"{module} imports {target}")
    return found


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, directly or by others."""
    order: dict[str, int] = {}
    found = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in order:
            for target in sorted(edges.get(module, ())):
                visit(target, (*path, module))
            order[module] = len(order)

    for module in sorted(edges):
        visit(module, ())
    return found


@pytest.fixture(scope="module")
def edges() -> dict[str, set[str]]:
    found = modules()
    # The native modules are compiled: they import nothing of the package.
    known = {*found, "jaxring._native", "jaxring._native_cuda"}
    return {module: imports(path.read_text(), known) - {module} for module, path in found.items()}


def test_imports_go_downward(edges):
    assert forbidden(layers("python"), arrows(edges)) == []


def test_no_circles(edges):
    # `jaxring` itself gathers the public names, and is imported only as what users see.
    assert circles({module: targets - {"jaxring"} for module, targets in edges.items()}) == []


def test_an_import_that_is_turned_round_is_found(edges):
    found = arrows(edges)
    assert len(found) > 50
    assert_each_turned_round_is_found(layers("python"), found)


def test_plan_imports_nothing_of_ours(edges):
    for module, targets in edges.items():
        if unit(module) == "jaxring.plan":
            assert all(unit(target) == "jaxring.plan" for target in targets), module
