"""The option --import: modules that register algorithms of a job's own, which a command imports first."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    import argparse
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
