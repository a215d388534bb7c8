"""This process's settings: the JAXRING_* environment variables, read once.

A name that is not in the table (`jaxring.settings.variables`) is an error, because a misspelt variable that is quietly
ignored costs hours. Where NCCL's variable of the same name means the same, it is read in our variable's absence.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
from typing import TYPE_CHECKING, Any

from jaxring import _command
from jaxring.errors import SettingsError
from jaxring.settings.kinds import LEVELS
from jaxring.settings.variables import PREFIX, VARIABLES, Settings, Variable, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LEVELS",
    "VARIABLES",
    "Origin",
    "Settings",
    "Variable",
    "announce",
    "examine",
    "load",
    "of",
    "origins",
    "settings",
]

NCCL = "NCCL_"


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
    known = {PREFIX + variable.name for variable in VARIABLES}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.0)
            wrong.append(f"There is no variable {name}; the nearest one is {near[0]}.")
    found = {}
    for variable in VARIABLES:
        try:
            found[variable.name] = _origin(variable, environ)
        except SettingsError as error:
            wrong.append(str(error))
            found[variable.name] = Origin(variable.default)
    low, high = found["MIN_NCHANNELS"], found["MAX_NCHANNELS"]
    if low.value > high.value:
        low_name, high_name = low.name or PREFIX + "MIN_NCHANNELS", high.name or PREFIX + "MAX_NCHANNELS"
        wrong.append(f"{low_name} is {low.value}, which is more than {high_name}: {high.value}.")
        found |= {v.name: Origin(v.default) for v in VARIABLES if v.name in ("MIN_NCHANNELS", "MAX_NCHANNELS")}
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


def _origin(variable: Variable, environ: Mapping[str, str]) -> Origin:
    name = PREFIX + variable.name
    # Set but empty means unset, as shells and job files often leave it that way.
    text = environ.get(name, "").strip()
    if text:
        try:
            return Origin(variable.parse(text), name)
        except ValueError as error:
            raise SettingsError(f"{name} must be {error}, and it is {text[:300]!r}.") from None
    name = NCCL + variable.name
    text = environ.get(name, "").strip() if variable.nccl else ""
    if not text:
        return Origin(variable.default)
    try:
        return Origin(variable.parse(text), name)
    except ValueError as error:
        # It was written for NCCL, which accepts more values, so it is no error.
        ours = PREFIX + variable.name
        return Origin(variable.default, ignored=f"{name}={text[:300]} is not taken for {ours}, which must be {error}")


def load(environ: Mapping[str, str]) -> Settings:
    """Parse the variables of `environ`. Raises SettingsError naming the variables at fault."""
    return of(origins(environ))


def of(found: Mapping[str, Origin]) -> Settings:
    """The values alone."""
    return Settings(**{name.lower(): origin.value for name, origin in found.items()})


@functools.cache
def settings() -> Settings:
    """This process's settings, read from the environment at the first call; later changes have no effect.

    Raises SettingsError that names the wrong variables. In the command `jaxring`, which must run to report them, they
    get their defaults.
    """
    found, wrong = examine(os.environ)
    if wrong and not _command.this_process():
        raise SettingsError(" ".join(wrong))
    return of(found)


def announce(environ: Mapping[str, str], version: str) -> None:
    """Apply DEBUG to the logger 'jaxring', and log `version` and what comes from variables of NCCL's.

    Where DEBUG is not set the logger's level stays as it is.
    """
    found, _ = examine(environ)
    logger = logging.getLogger("jaxring")
    level = found["DEBUG"].value
    if level:
        logger.setLevel(LEVELS[level])
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
        # At the level that was asked for, so that every one of them shows it, as NCCL does.
        logger.log(logger.level, "jaxring %s", version)
    for name, origin in found.items():
        if origin.name.startswith(NCCL):
            logger.info("%s%s is taken from %s: %s", PREFIX, name, origin.name, shown(origin.value))
        elif origin.ignored:
            logger.warning("%s", origin.ignored)
