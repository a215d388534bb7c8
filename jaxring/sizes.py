"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    """Bytes, from "4", "64K", "1M" or "2G". ValueError otherwise."""
    found = re.fullmatch(r"([0-9]+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(text)
    return int(found[1]) * _UNITS[found[2].upper()]


def shown(nbytes: int) -> str:
    """Bytes, short: 4, 64K, 1M."""
    for unit in ("G", "M", "K"):
        if nbytes % _UNITS[unit] == 0 and nbytes >= _UNITS[unit]:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)
