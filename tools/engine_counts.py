"""Count what an all-reduce costs the engine, in numbers that do not depend on the machine's speed.

Valgrind's callgrind counts instructions and memory accesses, strace counts system calls, of an all-reduce of float32
among four ranks in one process. A number is the difference between a run of some rounds and one of twice as many.
Prints a table. With --table FILE it exits with 1 if a number is more than a tenth above the file's; --write FILE writes
the file, after a change that makes the engine faster.

usage: python tools/engine_counts.py ENGINE_COUNTS [--table FILE | --write FILE]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"4 B": 4, "1 KiB": 1024, "256 KiB": 256 * 1024}
ROUNDS = 50
EVENTS = {"Ir": "instructions", "Dr": "reads", "Dw": "writes"}
SLACK = 1.1
# Idle workers wake up now and then, and more often on a busy machine. A call that each operation makes counts as 1.
CALLS_SLACK = 0.5
CALLS_RUNS = 3


def callgrind(program: str, size: int, rounds: int) -> dict[str, int]:
    """Instructions, reads and writes inside Site::Arrive, in which an operation within one process runs to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = ["valgrind", "-q", "--log-file=/dev/null", "--tool=callgrind", "--collect-atstart=no"]
        command += ["--cache-sim=yes", "--LL=33554432,16,64", f"--callgrind-out-file={out}"]
        command += ["--toggle-collect=jaxring::Site::Arrive*"]
        subprocess.run([*command, program, str(size), str(rounds)], check=True, timeout=300)
        text = out.read_text()
    names, values = (re.search(rf"^{word}: (.*)$", text, re.MULTILINE) for word in ("events", "totals"))
    if names is None or values is None:
        raise SystemExit("callgrind wrote no totals")
    found = dict(zip(names[1].split(), map(int, values[1].split()), strict=False))
    return {meaning: found[event] for event, meaning in EVENTS.items()}


def system_calls(program: str, size: int, rounds: int) -> int:
    """The system calls of all threads."""
    with tempfile.NamedTemporaryFile(mode="r") as out:
        command = ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", out.name, program, str(size), str(rounds)]
        subprocess.run(command, check=True, timeout=300)
        calls = [line.split() for line in out.read().splitlines()]
        return sum(int(call[0]) for call in calls if len(call) == 2 and call[0].isdigit() and call[1] != "total")


def count(program: str) -> dict[str, dict[str, float]]:
    table = {}
    for name, size in SIZES.items():
        few, many = (callgrind(program, size, times) for times in (ROUNDS, 2 * ROUNDS))
        row = {meaning: (many[meaning] - few[meaning]) / ROUNDS for meaning in few}
        calls = []
        for _ in range(CALLS_RUNS):
            few_calls, many_calls = (system_calls(program, size, times) for times in (10 * ROUNDS, 20 * ROUNDS))
            calls.append((many_calls - few_calls) / (10 * ROUNDS))
        row["system calls"] = max(0.0, statistics.median(calls))
        table[name] = row
    return table


def show(table: dict[str, dict[str, float]]) -> str:
    """A line for each size, which is also the file's format."""
    lines = [f"{'all_reduce of':<14}{'instructions':>14}{'reads':>10}{'writes':>10}{'system calls':>14}"]
    lines += [
        f"{name:<14}{row['instructions']:>14.0f}{row['reads']:>10.0f}{row['writes']:>10.0f}{row['system calls']:>14.2f}"
        for name, row in table.items()
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> dict[str, dict[str, float]]:
    columns = [*EVENTS.values(), "system calls"]
    table = {}
    for line in path.read_text().splitlines()[1:]:
        name, values = line[:14].strip(), line[14:].split()
        table[name] = dict(zip(columns, map(float, values), strict=True))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("program", help="the native tests' engine_counts")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--table", type=Path, help="compare with this file")
    where.add_argument("--write", type=Path, help="write this file")
    options = parser.parse_args()
    table = count(options.program)
    print(show(table), end="")
    if options.write:
        options.write.write_text(show(table))
    if options.table:
        expected = read(options.table)
        worse = [
            f"{name}: {value:.4g} {what}, {expected[name][what]:.4g} expected"
            for name, row in table.items()
            for what, value in row.items()
            if value > expected[name][what] * SLACK + (CALLS_SLACK if what == "system calls" else 0)
        ]
        if worse:
            sys.exit("an all-reduce costs more than before:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
