"""The option --import: modules that register algorithms of a job's own, which a command imports first."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from jaxring.bench.tuning.cell import Own
from jaxring.cli import arguments as types
from jaxring.errors import JaxringError
from jaxring.plan import user

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option, whose values go to ``modules``."""
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: it registers algorithms of the job's own",
    )


def add_own(parser: argparse.ArgumentParser) -> None:
    """Declare the options by which algorithms of the user's own are measured beside the others."""
    add_argument(parser)
    help_ = "measure this algorithm of your own, too (repeatable)"
    parser.add_argument("--algorithm", dest="own", action="append", default=[], metavar="NAME", help=help_)


def own(arguments: argparse.Namespace) -> Own:
    """Import the modules of `add_own`'s options. A name that nothing has registered ends the command, as a wrong option
    does; JaxringError as of `load`."""
    load(arguments.modules)
    try:
        return Own(tuple(map(types.one_of("algorithm", user.names()), arguments.own)), tuple(arguments.modules))
    except argparse.ArgumentTypeError as error:
        arguments.error(f"argument --algorithm: {error}")
        raise


def load(names: Sequence[str]) -> None:
    """Import them, also from the current folder.

    Raises JaxringError for one that is not there, that imports what is not there, or that is no Python; what a module
    itself raises goes through with its traceback.
    """
    if names:
        sys.path.insert(0, "")  # as python -m has it
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, SyntaxError) as error:
            raise JaxringError(f"Cannot import {name}: {error}.") from error
