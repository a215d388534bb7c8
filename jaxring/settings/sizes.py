"""Sizes in bytes in their human-readable form."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes, from "4", "64K", "1M" or "2G", also as "64KiB". ValueError otherwise."""
    found = re.fullmatch(r"([0-9]+) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is no size in bytes: write 4, 64K, 1M or 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


def shown(nbytes: int) -> str:
    """Bytes as people read them: 4 B, 64 KiB, 1.5 MiB."""
    for unit in "TGMK":
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:.4g} {unit}iB"
    return f"{nbytes} B"
