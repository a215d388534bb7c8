"""Types of arguments: a wrong value is an error when the command line is parsed, with the nearest possible value."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import TYPE_CHECKING

from jaxring.plan.dtypes import DTYPES
from jaxring.settings import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What other libraries call ours.
OPERATIONS = {"avg": "mean", "average": "mean", "add": "sum", "mul": "prod", "product": "prod"}
_DTYPES = {
    "half": "float16",
    "single": "float32",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "fp8": "float8_e4m3fn",
}
_SHORT = {"f": "float", "fp": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}


def one_of(what: str, names: Sequence[str], others: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """One of the names. ``others``: what is not among them, and which of them it means."""

    def parse(text: str) -> str:
        if text in names:
            return text
        near = (others or {}).get(text.lower()) or next(iter(difflib.get_close_matches(text.lower(), names, 1)), "")
        hint = f"did you mean {near}? There are" if near else "there are"
        raise argparse.ArgumentTypeError(f"there is no {what} {text!r}: {hint} {', '.join(names)}")

    return parse


def dtype(text: str) -> str:
    """A dtype that there are collectives for."""
    short = re.fullmatch(r"(f|fp|bf|i|s|u|c)([0-9]+)", text.lower())
    meant = {text.lower(): _SHORT[short[1]] + short[2]} if short else _DTYPES
    return one_of("dtype", tuple(DTYPES), meant)(text)


def nbytes(text: str) -> int:
    """A size in bytes."""
    try:
        return sizes.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def counted(text: str) -> int:
    """A number of what is counted from 0."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """A variable of the environment and its value."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def layout(text: str) -> tuple[int, int]:
    """(processes, devices) from "4x2"."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not PROCESSESxDEVICES: write 4x2")
    return int(found[1]), int(found[2])
