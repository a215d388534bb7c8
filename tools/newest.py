"""Say what is new to jaxring in the jax of this environment: what `make newest` prints at its end.

usage: python tools/newest.py [RESULTS.xml]

Listed are JAX's names that the package uses and that are gone or deprecated, collectives that its tables lack, and the
tests that failed as of RESULTS.xml (pytest's --junitxml). The exit status is 1 if there is any.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent


def tested_versions() -> list[str]:
    """The versions of jax on which `.ci/run` tests."""
    return re.findall(r'"3\.\d+ ([\d.]+)"', (ROOT / ".ci" / "run").read_text())


def _found(value: object, name: str) -> object:
    """An attribute or a submodule. AttributeError where there is neither."""
    try:
        return getattr(value, name)
    except AttributeError:
        module = getattr(value, "__name__", None)
        if not hasattr(value, "__path__"):
            raise
        try:
            return importlib.import_module(f"{module}.{name}")
        except ImportError:
            raise AttributeError(name) from None


def _resolved(dotted: str) -> str:
    """What is wrong with a name of JAX's, or ""."""
    module, *names = dotted.split(".")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        value: object = importlib.import_module(module)
        for name in names:
            try:
                value = _found(value, name)
            except AttributeError:
                return "is gone"
            except DeprecationWarning as warning:
                return f"is deprecated: {warning}"
            except Exception:
                return ""  # A property that exists, and has no value outside of a trace.
    return ""


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports of JAX bind in ``tree``, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in ("jax", "jaxlib"):
                    yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("jax", "jaxlib"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as its names; [] for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [*before, node.attr] if (before := _dotted(node.value)) else []
    return []


def _asked_for(node: ast.AST) -> list[list[str]]:
    """What the calls of `hasattr` in ``node`` ask for, as lists of names."""
    return [
        [*_dotted(each.args[0]), each.args[1].value]
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and _dotted(each.func) == ["hasattr"] and isinstance(each.args[1], ast.Constant)
    ]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Like `ast.walk`, without the branches of an `if` that asks what this JAX has."""
    yield node
    for child in [node.test] if isinstance(node, ast.If) and _asked_for(node.test) else ast.iter_child_nodes(node):
        yield from _walk(child)


def names_of_jax(source: str) -> set[str]:
    """The names of JAX's that Python source imports, or reaches from what it imports.

    Not those that some versions lack: what it asks for by `hasattr`, and what it uses instead.
    """
    tree = ast.parse(source)
    everywhere = dict(pair for part in tree.body if not _has_scope(part) for pair in _imports(part))
    found = set(everywhere.values())
    for part in tree.body:
        bound = {**everywhere, **dict(_imports(part))}
        found |= set(bound.values())
        asked_for = _asked_for(part)
        for node in _walk(part):
            names = _dotted(node) if isinstance(node, ast.Attribute) else []
            if names and names[0] in bound and names not in asked_for:
                found.add(".".join([bound[names[0]], *names[1:]]))
    return found


def _has_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def missing_names(source: str) -> list[str]:
    """A line for each name of JAX's in Python source that this JAX lacks or warns of."""
    wrong = {name: why for name in sorted(names_of_jax(source)) if (why := _resolved(name))}
    # Where a module is gone, so is all that is taken from it.
    return [f"{name} {why}" for name, why in wrong.items() if not any(name.startswith(other + ".") for other in wrong)]


def missing_in_packages() -> list[str]:
    """The same of all files of the wheel."""
    files = sorted(path for folder in ("jaxring", "jaxring_plugin") for path in (ROOT / folder).rglob("*.py"))
    return [f"{path.relative_to(ROOT)} uses {line}" for path in files for line in missing_names(path.read_text())]


def unknown_collectives() -> list[str]:
    """The parallel primitives and public collectives of this JAX that jaxring does not know."""
    import jax

    try:
        from jaxring import lax
        from jaxring.dropin import lowerings
    except Exception as error:
        return [f"jaxring cannot be imported: {type(error).__name__}: {error}"]
    primitives = [
        f"jax has the collective primitive {name}: it belongs into TABLE, CASTS or NOT_SERVED of "
        "jaxring/dropin/lowerings.py"
        for name in lowerings.unknown()
    ]
    home = jax.lax.psum.__module__
    functions = [name for name, value in vars(jax.lax).items() if getattr(value, "__module__", "") == home]
    return primitives + [
        f"jax has the collective jax.lax.{name}, which jaxring/lax.py does not serve"
        for name in sorted(functions)
        if name not in lowerings.NOT_SERVED and not callable(vars(lax).get(name))
    ]


def failed_tests(results: Path) -> list[str]:
    """A line for each test that failed, as of pytest's --junitxml."""
    if not results.exists():
        return [f"the tests did not run to their end: there is no {results}"]
    lines = []
    for case in ET.parse(results).iter("testcase"):
        for bad in (*case.iter("failure"), *case.iter("error")):
            first = next(iter((bad.get("message") or "").splitlines()), "")
            place = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            lines.append(f"{place} fails: {first[:200]}")
    return lines


def main(arguments: list[str]) -> int:
    import jax
    import jaxlib

    news = missing_in_packages() + unknown_collectives()
    for results in arguments:
        news += failed_tests(Path(results))
    tested = tested_versions()
    among = "one of those" if jax.__version__ in tested else "none of those"
    python = ".".join(map(str, sys.version_info[:2]))
    print(f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, Python {python}", end=": ")
    print(f"{among} that CI tests ({', '.join(tested)}).")
    print("\n".join(f"* {line}" for line in news) or "It brings nothing that is new to jaxring.")
    return 1 if news else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
