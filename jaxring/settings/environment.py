"""Reads the environment: the value of each setting and where it comes from, and what is wrong."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any

from jaxring.errors import SettingsError
from jaxring.plan.selection import Selection
from jaxring.settings.ranges import Range
from jaxring.settings.retired import RETIRED, Retired
from jaxring.settings.row import PREFIX, Variable
from jaxring.settings.variables import VARIABLES, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

NCCL = "NCCL_"
_AND = " and "


@dataclasses.dataclass(frozen=True)
class Origin:
    """A value and where it comes from: the name of an environment variable, or "" for the default.

    ``ignored`` says why a variable of NCCL's was not taken.
    """

    value: Any
    name: str = ""
    ignored: str = ""


def examine(environ: Mapping[str, str]) -> tuple[dict[str, Origin], list[str]]:
    """The value of every variable by its name, and a sentence for each wrong variable, which gets its default."""
    wrong = []
    current = {PREFIX + variable.name for variable in VARIABLES}
    known = current | {PREFIX + old.name for old in RETIRED}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, current, 1, 0.0)
            wrong.append(f"There is no variable {name}; the nearest one is {near[0]}.")
    found = {}
    for variable in VARIABLES:
        try:
            found[variable.name] = _origin(variable, environ)
        except SettingsError as error:
            wrong.append(str(error))
            found[variable.name] = Origin(variable.default)
    for prefix in (PREFIX, NCCL):
        for old in RETIRED:
            text = _text(environ, prefix + old.name)
            if not text or not old.setting or (prefix == NCCL and not old.nccl):
                continue
            try:
                found[old.setting] = _translated(old, prefix, text, found[old.setting])
            except SettingsError as error:
                wrong.append(str(error))
                found[old.setting] = Origin(_variable(old.setting).default)
    if found["SAVE_OPERANDS"].value and not found["TRACE_DIR"].value:
        wrong.append("JAXRING_SAVE_OPERANDS saves in JAXRING_TRACE_DIR, which is not set: name a folder.")
        found["SAVE_OPERANDS"] = Origin(0)
    return found, wrong


def origins(environ: Mapping[str, str]) -> dict[str, Origin]:
    """The value of every variable by its name. Raises SettingsError naming the variables at fault."""
    found, wrong = examine(environ)
    if wrong:
        raise SettingsError(" ".join(wrong))
    return found


def _text(environ: Mapping[str, str], name: str) -> str:
    # Set but empty means unset, as shells and job files often leave it that way.
    return environ.get(name, "").strip()


def _origin(variable: Variable, environ: Mapping[str, str]) -> Origin:
    name = PREFIX + variable.name
    if text := _text(environ, name):
        try:
            return Origin(variable.parse(text), name)
        except ValueError as error:
            raise _wrong(name, text, error) from None
    name = NCCL + variable.name
    text = _text(environ, name) if variable.nccl else ""
    if not text:
        return Origin(variable.default)
    try:
        return Origin(variable.parse(text), name)
    except ValueError as error:
        # It was written for NCCL, which accepts more values, so it is no error.
        return Origin(variable.default, ignored=_not_taken(name, text, variable.name, error))


def _translated(old: Retired, prefix: str, text: str, current: Origin) -> Origin:
    """The origin of a setting, ``current`` so far, with what a retired name says about it.

    Our names come before NCCL's, and among ours one that is not retired decides. Raises SettingsError where a retired
    name of ours contradicts it: what a job asked for, such as encryption, is not dropped.
    """
    name = prefix + old.name
    try:
        becomes = old.becomes(old.parse(text))
    except ValueError as error:
        if prefix == PREFIX:
            raise _wrong(name, text, error) from None
        return dataclasses.replace(current, ignored=_not_taken(name, text, old.setting, error))
    if not becomes:
        return current
    variable = _variable(old.setting)
    value = variable.parse(becomes)
    if not current.name:
        return dataclasses.replace(current, value=value, name=name)
    first, second = current.value, value
    if prefix == PREFIX and current.name.startswith(NCCL):
        first, second = second, first
    try:
        both = _filled(first, second, variable)
    except ValueError:  # the ends of a range that cross
        if prefix == PREFIX:
            raise SettingsError(
                f"{name}={text[:300]} leaves nothing of {current.name}, by which {PREFIX}{old.setting} is "
                f"{shown(current.value)}: unset one of them."
            ) from None
        return dataclasses.replace(current, ignored=f"{name}={text[:300]} is not taken: it contradicts {current.name}")
    decided = current.name.split(_AND)[0] == PREFIX + old.setting
    if prefix == PREFIX and decided and both != _filled(second, first, variable):
        raise SettingsError(
            f"{name}={text[:300]} means {PREFIX}{old.setting}={becomes}, and {current.name} is {shown(current.value)}: "
            f"unset {name}, which goes with the next release."
        )
    names = {value: name, current.value: current.name}
    return dataclasses.replace(current, value=both, name=names.get(both) or current.name + _AND + name)


def _filled(first: Any, second: Any, variable: Variable) -> Any:
    """The first value, with what the second says where the first says nothing, if it is a value of that kind."""
    # As from one text, so that the order of names is the same on all processes.
    return variable.parse(shown(first.filled(second))) if isinstance(first, (Selection, Range)) else first


def _variable(name: str) -> Variable:
    return next(variable for variable in VARIABLES if variable.name == name)


def _wrong(name: str, text: str, error: ValueError) -> SettingsError:
    return SettingsError(f"{name} must be {error}, and it is {text[:300]!r}.")


def _not_taken(name: str, text: str, setting: str, error: ValueError) -> str:
    return f"{name}={text[:300]} is not taken for {PREFIX}{setting}, which must be {error}"
