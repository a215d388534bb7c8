"""Whether this process is the command `jaxring`: it starts with wrong settings too, to say what is wrong with them."""

from __future__ import annotations

import itertools
import pathlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODULE = "jaxring.cli"


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """By sys.argv and sys.orig_argv, as they are while the package is imported: the command has no say before that.

    The script that pip makes is called jaxring; in `python -m jaxring.cli` the first argument is "-m" until the module
    is found.
    """
    if not argv:
        return False
    if argv[0] == "-m":
        return f"-m{_MODULE}" in original or any(pair == ("-m", _MODULE) for pair in itertools.pairwise(original))
    return pathlib.PurePath(argv[0]).name == "jaxring"


def this_process() -> bool:
    """Whether this process is the command."""
    return is_command(sys.argv, sys.orig_argv)
