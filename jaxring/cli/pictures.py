"""Files of pictures that commands draw."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    import pathlib

_FORMATS = (".png", ".svg", ".pdf")


def check(path: pathlib.Path | None) -> None:
    """JaxringError where --plot could not be drawn at the end; before anything is measured."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise JaxringError("Plots are drawn with matplotlib: pip install 'jaxring[bench]'.")
    if path.suffix.lower() not in _FORMATS:
        raise JaxringError(f"--plot {path}: name a file that ends in {', '.join(_FORMATS)}.")
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if path.is_dir() or not os.access(there, os.W_OK) or not (there.is_dir() or there == path):
        raise JaxringError(f"--plot {path}: this file cannot be written.")
