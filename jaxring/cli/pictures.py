"""Files of pictures that commands draw."""

from __future__ import annotations

import importlib.util
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
