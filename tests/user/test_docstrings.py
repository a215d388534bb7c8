"""`help()` of every public function has all that a caller needs: arguments, result, errors."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import types
from typing import Any

import jax
import pytest

import jaxring
from tests.user.test_types import MODULES

# What raises nothing of its own.
WITHOUT_ERRORS = {
    "jaxring.abort",
    "jaxring.build_info",
    "jaxring.counters",
    "jaxring.export_checks",
    "jaxring.new_token",
    "jaxring.plans",
    "jaxring.recovery.halted",
    "jaxring.recovery.members",
    "jaxring.uninstall",
}
HEADS = ("Args", "Returns", "Raises", "Examples")


def public() -> dict[str, Any]:
    """The public functions by name, and the methods of `Communicator` and `Handle`."""
    found = {f"jaxring.{name}": getattr(jaxring, name) for name in jaxring.__all__}
    for module in MODULES:
        if module != "lax":  # its functions are jax.lax's
            values = vars(importlib.import_module(f"jaxring.{module}"))
            others = [name for name in values["__all__"] if values[name] is not getattr(jaxring, name, None)]
            found |= {f"jaxring.{module}.{name}": values[name] for name in others}
    for owner in (jaxring.Communicator, jaxring.Handle, jaxring.epilogues.Epilogue):
        methods = {name: value for name, value in vars(owner).items() if not name.startswith(("_", "tree_"))}
        found |= {f"{owner.__name__}.{name}": value for name, value in methods.items()}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


PUBLIC = public()


def sections(documentation: str) -> dict[str, str]:
    """The sections of a docstring by their titles, without the indentation of their lines."""
    parts = re.split(rf"^({'|'.join(HEADS)}):$", documentation, flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(inspect.cleandoc, parts[2::2]), strict=True))


def entries(section: str) -> dict[str, str]:
    """What a section says of each name at the begin of its lines."""
    parts = re.split(r"^([\w.*]+): ", section, flags=re.MULTILINE)
    assert parts[0] == "", parts[0]
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_says_what_a_caller_needs(name: str) -> None:
    function = PUBLIC[name]
    said = sections(inspect.getdoc(function) or "")
    signature = inspect.signature(function)
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = [kinds.get(p.kind, "") + p.name for p in signature.parameters.values() if p.name != "self"]
    arguments = entries(said.get("Args", ""))
    assert list(arguments) == parameters
    assert all(len(text.split()) > 2 for text in arguments.values())
    assert bool(said.get("Returns")) == (signature.return_annotation != "None")
    errors = entries(said.get("Raises", ""))
    assert bool(errors) == (name not in WITHOUT_ERRORS)
    for error in errors:
        assert issubclass(resolved(error), Exception)


def test_functions_are_of_modules_that_users_import() -> None:
    private = {name: value.__module__ for name, value in PUBLIC.items() if "._" in value.__module__}
    assert private == {}


def resolved(name: str) -> type:
    """The class that a docstring names."""
    found: Any = {"jaxring": jaxring, "jax": jax}.get(name.partition(".")[0], builtins)
    for part in name.split(".")[found is not builtins :]:
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


def test_the_sections_come_in_order() -> None:
    for name, function in PUBLIC.items():
        found = list(sections(inspect.getdoc(function) or ""))
        assert found == [head for head in HEADS if head in found], name


@pytest.mark.parametrize("name", [name for name in jaxring.__all__ if name.endswith("_start")])
def test_a_start_has_the_arguments_of_its_collective(name: str) -> None:
    start, whole = getattr(jaxring, name), getattr(jaxring, name.removesuffix("_start"))
    assert inspect.signature(start).parameters == inspect.signature(whole).parameters
    assert str(inspect.signature(start).return_annotation).startswith("Handle[")
    assert entries(sections(start.__doc__)["Args"]) == entries(sections(inspect.getdoc(whole) or "")["Args"])


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_are_python_that_uses_public_names(name: str) -> None:
    example = sections(inspect.getdoc(PUBLIC[name]) or "").get("Examples", "In words:\n")
    assert example.splitlines()[0].endswith(":")  # otherwise the site shows the code as text
    code = "\n".join(line for line in example.splitlines() if line.startswith("    ") or not line)
    compile(inspect.cleandoc("\n" + code), name, "exec")
    for path in re.findall(r"jaxring((?:\.\w+)+)", code):
        found: Any = jaxring
        for part in path[1:].split("."):
            if isinstance(found, types.ModuleType) and not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)
