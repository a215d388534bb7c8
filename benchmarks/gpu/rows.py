"""Rows of measurements on a GPU: lines of JSON, written as they come, since a stage may be cut off at any time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jaxring.settings.sizes import size

if TYPE_CHECKING:
    import argparse
    import pathlib
    from collections.abc import Callable

    Write = Callable[[dict[str, Any]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all measurements on a GPU share."""
    import pathlib

    parser.add_argument("--ranks", type=counts, default="8,2,4", help="numbers of ranks")
    parser.add_argument("--sizes", type=_sizes, default="256M,1K,32K,1M,16M", help="the most important one first")
    parser.add_argument("--launches", type=int, default=100, help="for a time; a tenth above 1 MiB")
    parser.add_argument("--rows", type=pathlib.Path, help="append the rows to this file")


def launches_of(launches: int, nbytes: int) -> int:
    """How often to launch what takes so many bytes."""
    return launches if nbytes <= 1 << 20 else max(1, launches // 10)


def writer(path: pathlib.Path | None) -> Write:
    """Prints a row, and appends it to the file if there is one."""

    def write(row: dict[str, Any]) -> None:
        text = json.dumps(row)
        print(text, flush=True)
        if path is not None:
            with path.open("a") as file:
                file.write(text + "\n")

    return write


def counts(text: str) -> list[int]:
    """The numbers of an option: "8,2,4"."""
    return [int(n) for n in text.split(",")]


def _sizes(text: str) -> list[int]:
    return [size(each) for each in text.split(",")]
