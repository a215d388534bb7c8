"""What is said of the parts that GPUs have not run, or not in every way: the one record. Messages repeat it, and tests
hold the documentation to it.

A part's text becomes "" here when `python -m benchmarks.gpu` has passed with it where it is said not to have run;
tests/docs/test_experimental.py then names the pages that still say it. CMake reads ONE_GPU and the line of "cuda", too.
"""

from __future__ import annotations

ONE_GPU = "experimental: it has run on one GPU only"
NEVER = "experimental: it has not run on a GPU yet"
EXPERIMENTAL = {
    "cuda": ONE_GPU,  # the whole CUDA engine: with all ranks on one GPU, not between GPUs
    "nvls": NEVER,
    "copy_engine": "",
    "bulk_copies": "",
}


def mark(part: str, before: str = "", after: str = "") -> str:
    """What is said of the part between two texts, "" where nothing is."""
    return f"{before}{EXPERIMENTAL[part]}{after}" if EXPERIMENTAL[part] else ""


def of_choice(algorithm: str) -> str:
    """What the reason for a choice on GPUs adds, or ""."""
    parts = (("cuda", "the CUDA engine"), (algorithm, algorithm))
    return "".join(f"; {name} is {EXPERIMENTAL[part]}" for part, name in parts if EXPERIMENTAL.get(part))
