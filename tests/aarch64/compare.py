"""Compares what two machines got: ``python -m tests.aarch64.compare FOLDER FOLDER``, reports of coll_worker.py.

Each must have passed all its checks, and all numbers must be the same to the bit. NaNs may differ: which one comes of
infinity minus infinity is the processor's affair (x86-64's is negative, Arm's is positive).
"""

from __future__ import annotations

import json
import pathlib
import platform
import sys

from tests.collectives.cases.coll_jobs import merged


def main() -> None:
    """The command."""
    folders = [pathlib.Path(name) for name in sys.argv[1:3]]
    reports = [[json.loads(path.read_text(encoding="utf-8")) for path in sorted(f.glob("*.json"))] for f in folders]
    compared = checked = 0
    problems: list[str] = []
    for table in reports[0][0]["tables"]:
        (checks, failures, numbers), (other_checks, other_failures, other) = (
            merged(report, table, "numbers") for report in reports
        )
        problems += failures + other_failures
        if checks != other_checks or numbers.keys() != other.keys() or not numbers:
            problems.append(f"{table}: {checks} checks of {len(numbers)} cases, {other_checks} of {len(other)}")
        problems += [f"{table}: {name} has other bits" for name in numbers if numbers[name] != other.get(name)]
        checked += checks
        compared += len(numbers)
    print(f"{checked} checks on each machine; {compared} results compared to the bit with {platform.machine()}'s")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
