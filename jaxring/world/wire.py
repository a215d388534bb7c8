"""Bounded JSON from other processes: every value's type and range is checked before it is used."""

from __future__ import annotations

import json
from typing import Any


def decode(data: bytes, limit: int) -> dict[str, Any]:
    """The JSON object in `data`. Raises ValueError when it exceeds `limit` bytes or is not an object."""
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes of JSON exceed the limit of {limit}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def encode(value: dict[str, Any]) -> bytes:
    """Compact JSON, ASCII only, without line breaks."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def integer(value: Any, name: str, low: int, high: int) -> int:
    """`value` as an int from `low` to `high`. Raises ValueError."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is not an integer from {low} to {high}")
    return value


def text(value: Any, name: str, limit: int) -> str:
    """`value` as printable text of at most `limit` characters. Raises ValueError."""
    if type(value) is not str or len(value) > limit or not value.isprintable():
        raise ValueError(f"{name} is not printable text of at most {limit} characters")
    return value
