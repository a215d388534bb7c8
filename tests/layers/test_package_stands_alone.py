"""Nothing that is installed reaches into the checkout: a wheel has the package alone, without tests/ or benchmarks/."""

from __future__ import annotations

import ast
import pathlib

import pytest

from tests import ROOT

PACKAGE = ROOT / "jaxring"
# What Python can import from the root of a checkout and from examples/, which are on the path of its tests.
INSTALLED = {"jaxring", "jaxring_plugin"}
OUTSIDE = {path.stem for folder in (ROOT, ROOT / "examples") for path in folder.iterdir()} - INSTALLED


def reaches(text: str, depth: int) -> list[str]:
    """What the source of a module reaches of the checkout. ``depth``: how many steps up from its file the root is."""
    reader = Reader(depth)
    reader.visit(ast.parse(text))
    return reader.found


class Reader(ast.NodeVisitor):
    """Finds imports from outside the package, names of such modules in strings, and paths that leave the package."""

    def __init__(self, depth: int) -> None:
        self.found: list[str] = []
        self._depth = depth
        self._heights: dict[str, int] = {}  # of variables that hold paths

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._name(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._name(node, node.module or "")

    def visit_Constant(self, node: ast.Constant) -> None:
        # For importlib, or `python -m`. A word alone, such as "docs", is a word.
        if isinstance(node.value, str) and "." in node.value and node.value.replace(".", "").isidentifier():
            self._name(node, node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        height = self._height(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and height is not None:
                self._heights[target.id] = height

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._path(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._path(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._path(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._path(node)

    def _name(self, node: ast.stmt | ast.expr, name: str) -> None:
        if name.split(".")[0] in OUTSIDE:
            self.found.append(f"line {node.lineno}: {name}")

    def _path(self, node: ast.expr) -> None:
        height = self._height(node)
        if height is None:
            self.generic_visit(node)
        elif height >= self._depth:
            self.found.append(f"line {node.lineno}: {ast.unparse(node)}")

    def _height(self, node: ast.expr) -> int | None:
        """How many steps a path leads up from this module's file; None for what is no such path."""
        match node:
            case ast.Name(id="__file__"):
                return 0
            case ast.Name(id=name):
                return self._heights.get(name)
            case ast.Attribute(value=path, attr="parent"):
                return self._up(path, 1)
            case ast.Subscript(value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int(number))):
                return self._up(path, number + 1)
            case ast.Attribute(value=path, attr="parents"):
                return self._up(path, self._depth)  # one of them is the root
            case ast.Call(func=ast.Attribute(attr="dirname"), args=[path]):
                return self._up(path, 1)
            # Path(path), os.path.join(path, "..", ...), path.joinpath("..") and methods such as resolve().
            case ast.Call(func=function, args=arguments):
                paths = [*arguments, *([function.value] if isinstance(function, ast.Attribute) else [])]
                heights = [height for each in paths if (height := self._height(each)) is not None]
                return max(heights) + sum(self._dots(each) for each in arguments) if heights else None
            case ast.BinOp(left=path, right=more):
                return self._up(path, self._dots(more))
        return None

    def _up(self, path: ast.expr, steps: int) -> int | None:
        height = self._height(path)
        return None if height is None else height + steps

    @staticmethod
    def _dots(node: ast.expr) -> int:
        return str(node.value).split("/").count("..") if isinstance(node, ast.Constant) else 0


MODULES = sorted(PACKAGE.rglob("*.py"))


def depth(path: pathlib.Path) -> int:
    """How many steps up from a module's file the root is: 2 for a module of `jaxring` itself."""
    return len(path.relative_to(ROOT).parts)


def test_no_module_of_the_package_reaches_into_the_checkout() -> None:
    assert {"benchmarks", "tests", "tools", "fuzz", "lm"} <= OUTSIDE
    found = {str(path.relative_to(ROOT)): reaches(path.read_text(), depth(path)) for path in MODULES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "reach",
    [
        "from tests import ROOT",
        "import benchmarks.gpu",
        "def f():\n    from tools import choices",
        "from lm import train",
        "command = ('-m', 'benchmarks.gpu.measure')",
        "importlib.import_module('benchmarks.gpu')",
        "root = pathlib.Path(__file__).parents[2]",
        "root = pathlib.Path(__file__).resolve().parent.parent.parent",
        "here = pathlib.Path(__file__).parent\nroot = here.parent.parent",
        "root = next(each for each in pathlib.Path(__file__).parents if each.name == 'jaxring').parent",
        "root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))",
        "root = os.path.join(os.path.dirname(__file__), '..', '..', 'tests')",
        "root = pathlib.Path(__file__).parent / '../../tests'",
    ],
)
def test_a_reach_that_is_added_to_a_module_is_found(reach: str) -> None:
    path = PACKAGE / "bench" / "run.py"
    assert len(reaches(f"{path.read_text()}\n{reach}\n", depth(path))) == 1


def test_a_path_within_the_package_is_none() -> None:
    assert reaches("there = pathlib.Path(__file__).parent / '../world'\npackage = there.parent.name", 4) == []
