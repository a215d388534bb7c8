"""The kinds of variables: functions that parse a value's text.

Each raises ValueError whose text describes the expected value and completes the sentence "must be ...".
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING

from jaxring.plan.selection import Selection
from jaxring.settings import sizes
from jaxring.settings.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Callable

# NCCL's terms for how far apart two devices are, the nearest first: the same device, one PCI switch between, several,
# the CPU's own host bridge, the link between CPUs.
DISTANCES = ("loc", "pix", "pxb", "phb", "sys")
LEVELS = {"VERSION": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": logging.DEBUG}
_LIST = re.compile(r"[\^=A-Za-z0-9_.:;,/@-]{0,256}")


def integer(low: int, high: int, multiple: int = 1) -> Callable[[str], int]:
    """From `low` to `high`, a multiple of `multiple`."""
    rule = f"an integer from {low} to {high}" + (f", a multiple of {multiple}" if multiple > 1 else "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high or int(text) % multiple:
            raise ValueError(rule)
        return int(text)

    return parse


def nbytes(low: int, high: int, multiple: int = 1) -> Callable[[str], int]:
    """Bytes from `low` to `high`, a multiple of `multiple`; K, M or G may stand behind the number."""
    rule = f"a size in bytes from {low} to {high}, such as 65536, 64K or 4M"
    rule += f", a multiple of {multiple}" if multiple > 1 else ""

    def parse(text: str) -> int:
        try:
            value = sizes.size(text)
        except ValueError:
            raise ValueError(rule) from None
        if not low <= value <= high or value % multiple:
            raise ValueError(rule)
        return value

    return parse


def between(low: int, high: int) -> Callable[[str], Range]:
    """A range of numbers within `low` and `high`, or one number."""
    rule = f"a number from {low} to {high}, a range of them such as 2-8, or 2- or -8 with an open end"

    def parse(text: str) -> Range:
        first, dash, last = text.partition("-")
        words = (first.strip(), (last if dash else first).strip())
        if not all(re.fullmatch(r"[0-9]{0,12}", word) for word in words):
            raise ValueError(rule)
        found = Range(*(int(word) if word else None for word in words))
        given = [end for end in (found.low, found.high) if end is not None]
        if not given or not low <= given[0] <= given[-1] <= high:
            raise ValueError(rule)
        return found

    return parse


def ports(text: str) -> str:
    """A range of ports, both ends included."""
    found = re.fullmatch(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65535:
        raise ValueError("a range of ports from 1 to 65535, such as 20000-20099")
    return f"{int(found[1])}-{int(found[2])}"


def flag(text: str) -> bool:
    """0 or 1."""
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def checks(text: str) -> str:
    """0, 1, oracle or oracle:N; as "", "messages", "oracle" and "oracle:N"."""
    known = {"0": "", "1": "messages", "oracle": "oracle"}
    if text.lower() in known:
        return known[text.lower()]
    if not re.fullmatch(r"oracle:[1-9][0-9]{0,8}", text.lower()):
        raise ValueError("0, 1, oracle or oracle:N, where N is at least 1")
    return text.lower()


def seconds(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:
        raise ValueError("a number of seconds above 0 and at most 1000000")
    return value


def seconds_or_never(text: str) -> float:
    """A positive number, or 0 for never."""
    try:
        return 0.0 if float(text) == 0 else seconds(text)
    except ValueError:
        raise ValueError("a number of seconds, at most 1000000, or 0 for never") from None


def names(text: str) -> str:
    """A comma list, which the code that uses it parses."""
    if not _LIST.fullmatch(text):
        raise ValueError("a comma list of at most 256 characters")
    return text


def some_of(*all_names: str, more: bool = False) -> Callable[[str], Selection]:
    """A list of some of the names, or with a leading ^ of those to leave out, in the order of their declaration.

    ``more``: a list after a + has names that may be chosen as well; it may follow those to leave out.
    """
    rule = f"a comma list of {', '.join(all_names)}, or ^ and those to leave out"
    rule += ", or + and those that may be chosen, too" if more else ""

    def listed(text: str) -> tuple[str, ...]:
        given = {word.strip().lower() for word in text.split(",")}
        if not given <= set(all_names):
            raise ValueError(rule)
        return tuple(n for n in all_names if n in given)

    def parse(text: str) -> Selection:
        text, plus, added = text.partition("+")
        also = listed(added) if plus else ()
        if not text or text.startswith("^"):
            but = listed(text[1:]) if text else ()
            if len(but) == len(all_names) or set(but) & set(also) or (plus and not more):
                raise ValueError(rule)
            return Selection(but=but, also=also)
        if plus:
            raise ValueError(rule)
        return Selection(only=listed(text))

    return parse


def one_of(*all_names: str) -> Callable[[str], str]:
    """One of the names, whatever their case."""

    def parse(text: str) -> str:
        if text.lower() not in all_names:
            raise ValueError(" or ".join(all_names))
        return text.lower()

    return parse


def p2p(text: str) -> tuple[str, ...]:
    """direct, staged or none, then "shared" where the list has it; direct where it has only that."""
    names = {name.strip().lower() for name in text.split(",")}
    ways = [*(names - {"shared"})] or ["direct"]
    if ways[0] not in ("direct", "staged", "none") or len(ways) > 1:
        raise ValueError("direct, staged or none, and shared")
    return (ways[0], "shared") if "shared" in names else (ways[0],)


def transport(text: str) -> str:
    """IB, Socket or TLS, whatever their case, or plugin:NAME."""
    word, _, name = text.partition(":")
    if word.lower() == "plugin" and name:
        return "plugin:" + text_line(name)
    if text.lower() not in ("ib", "socket", "tls"):
        raise ValueError("IB, Socket, TLS or plugin:NAME")
    return text.lower()


def text_line(text: str) -> str:
    """Any printable text."""
    if len(text) > 256 or not text.isprintable():
        raise ValueError("at most 256 printable characters")
    return text


def plugin(text: str) -> str:
    """A library's path or name; "none" for none, as in NCCL."""
    return "" if text == "none" else text_line(text)


# The parameters of fault injection, as in ffi/transport/core/faults.h: shares of all messages, and some numbers.
_SHARES = ("drop", "delay", "duplicate", "truncate", "corrupt", "reorder", "reset")


def faults(text: str) -> tuple[str, ...]:
    """A comma list of name=number."""
    rule = "a comma list of seed=, delay_us=, data_only= (0 or 1) and shares from 0 to 1: " + "=, ".join(_SHARES) + "="
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        name, _, number = word.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise ValueError(rule) from None
        highest = 1.0 if name in _SHARES else {"seed": 2.0**32, "delay_us": 1e7, "data_only": 1.0}.get(name, -1.0)
        if not 0 <= value <= highest or (name == "seed" and not number.isdecimal()):
            raise ValueError(rule)
    return words


def fault_plan(words: tuple[str, ...]) -> dict[str, float]:
    """A value that `faults` has accepted, in the engines' format: a number by each name."""
    return {name: float(number) for name, number in (word.split("=") for word in words)}


def level(text: str) -> str:
    """A log level by NCCL's name."""
    if text.upper() not in ("", *LEVELS):
        raise ValueError("one of " + ", ".join(LEVELS))
    return text.upper()
