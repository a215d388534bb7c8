"""Where in the user's program a collective comes from: the innermost frame that is neither JAX's nor ours."""

from __future__ import annotations

import pathlib
from typing import Any

import jax

_OWN = tuple(f"{folder}/" for folder in (pathlib.Path(jax.__file__).parent, pathlib.Path(__file__).parents[1]))


def is_users(file: str) -> bool:
    """Whether a frame of this file is the user's."""
    return not file.startswith((*_OWN, "<"))


def is_installed(file: str) -> bool:
    """Whether a file is an installed library's, such as a framework's that the user's program is built on."""
    return "/site-packages/" in file or "/dist-packages/" in file


def traced_at(traceback: Any) -> str:
    """``file.py:line`` of the user's innermost frame in a JAX traceback."""
    for frame in traceback.frames if traceback is not None else ():
        if is_users(frame.file_name):
            return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.line_num}"
    return "?"
