"""This process's settings: the JAXRING_* environment variables, read once.

A name that is neither in the table (`jaxring.settings.variables`) nor retired (`jaxring.settings.retired`) is an error,
because a misspelt variable that is quietly ignored costs hours. Where NCCL's variable of the same name means the same,
it is read in our variable's absence.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

from jaxring import _command
from jaxring.errors import SettingsError
from jaxring.settings import retired
from jaxring.settings.environment import NCCL, Origin, examine, origins
from jaxring.settings.kinds import LEVELS
from jaxring.settings.row import PREFIX, Variable
from jaxring.settings.variables import VARIABLES, Settings, shown

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
    """Apply DEBUG to the logger 'jaxring', and log `version`, retired names and what comes from variables of NCCL's.

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
    for sentence in retired.warnings(environ):
        logger.warning("%s", sentence)
    for name, origin in found.items():
        if NCCL in origin.name:
            logger.info("%s%s is taken from %s: %s", PREFIX, name, origin.name, shown(origin.value))
        if origin.ignored:
            logger.warning("%s", origin.ignored)
