"""What no GPU has run yet: the one record. Messages repeat it, and tests hold the documentation to it.

A part becomes False here when `python -m benchmarks.gpu` has passed with it on a GPU; tests/docs/test_experimental.py
then names the pages that still call it experimental. CMake reads MARK and the line of "cuda", too.
"""

from __future__ import annotations

MARK = "experimental: has not run on a GPU yet"
EXPERIMENTAL = {
    "cuda": True,  # the whole CUDA engine
    "nvls": True,
    "copy_engine": True,
    "bulk_copies": True,
}


def mark(part: str, before: str = "", after: str = "") -> str:
    """MARK between two texts where the part is experimental, "" where a GPU has run it."""
    return f"{before}{MARK}{after}" if EXPERIMENTAL[part] else ""


def of_choice(algorithm: str) -> str:
    """What the reason for a choice on GPUs adds, or ""."""
    what = [name for part, name in (("cuda", "the CUDA engine"), (algorithm, algorithm)) if EXPERIMENTAL.get(part)]
    return f"; {' with '.join(what)} is {MARK}" if what else ""
