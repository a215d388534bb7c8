"""Processes x devices, as the command line writes it."""

from __future__ import annotations

import re


def layout(text: str) -> tuple[int, int]:
    """(processes, devices) from "4x2". ValueError otherwise."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if not found:
        raise ValueError(text)
    return int(found[1]), int(found[2])


layout.__name__ = "layout (PROCESSESxDEVICES)"  # argparse names the type in its message
