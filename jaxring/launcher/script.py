"""Checks that a script can be run at all, so that `jaxring run` reports it once and not each of its processes."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
import traceback
import warnings

from jaxring.errors import JaxringError


def check_script(script: str, module: bool) -> None:
    """Raises JaxringError where there is no such file or module, or where it is not Python; runs nothing of it."""
    if module:
        file = _module_file(script)
    elif pathlib.Path(script).is_file():
        file = pathlib.Path(script)
    else:
        raise JaxringError(f"There is no file {script}. For a module add -m.")
    try:
        source = b"" if file is None else file.read_bytes()
    except OSError as error:
        raise JaxringError(f"Cannot read {script}: {error.strerror}.") from error
    if b"\0" in source:
        return  # compiled, or an archive: as Python takes them
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        raise JaxringError(f"{script} is not Python {sys.version_info[0]}.{sys.version_info[1]}:\n{shown}") from None


def _module_file(name: str) -> pathlib.Path | None:
    """The source of a module, if it has one that can be found without importing what it is in."""
    top = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` has it
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # modules that are there already may lack a spec
        return None
    finally:
        del sys.path[0]
    if spec is None:
        raise JaxringError(f"There is no module {top}.")
    is_source = top == name and spec.submodule_search_locations is None and str(spec.origin).endswith(".py")
    return pathlib.Path(str(spec.origin)) if is_source else None
