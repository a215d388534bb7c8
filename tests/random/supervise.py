"""Checks random programs in processes of their own: ``python -m tests.random.supervise --seed 0 --count 200``.

XLA ends the process at some of `jax.lax`'s own programs, by an abort in a pass of its compiler. When a process ends so,
its last programs are checked one by one, each in a process of its own, and the rest in a new one. A program whose
reference alone ends the process is one that jax.lax refuses; any other that ends the process has failed. With
``--processes`` several processes run each program together, as a job of `jaxring run`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from typing import NamedTuple

BEGINS = re.compile(r"^seeds (\d+) to (\d+)$", re.MULTILINE)


class Job(NamedTuple):
    """How programs are run: so many processes of so many devices each, with these options of `tests.random.run`."""

    devices: int
    processes: int = 1
    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The command, to which the options of one run are added."""
        module = [sys.executable, "-m"]
        if self.processes > 1:
            module += ["jaxring.cli", "run", "-n", str(self.processes), "--no-prefix", "-m"]
        return [*module, "tests.random.run", "--devices", str(self.devices), *self.options]


def run(first: int, count: int, job: Job, *options: str) -> tuple[int, str]:
    """Checks programs in one job, and shows what it says.

    Returns its exit code, negative if a signal ended a process of it, and its output.
    """
    command = [*job.command(), "--seed", str(first), "--count", str(count), *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    said = []
    try:
        for line in child.stdout:
            said.append(line)
            print(line, end="", flush=True)
    finally:
        child.kill()
        child.wait()
    code = child.returncode
    # `jaxring run` gives a signal as a shell does.
    return (code if code <= 128 else 128 - code), "".join(said)


def one(seed: int, job: Job) -> bool:
    """Whether a program is right, or one at which XLA ends the process without jaxring, too."""
    code, _ = run(seed, 1, job)
    if code >= 0:
        return code == 0
    reference, _ = run(seed, 1, job, "--reference-only")
    if reference < 0:
        print(f"  JAX refuses seed {seed}: XLA ends the process by signal {-reference}", flush=True)
        return True
    print(f"FAILED seed {seed}: the process ends by signal {-code}, and by the reference alone it does not", flush=True)
    return False


def supervise(first: int, count: int, job: Job) -> bool:
    """Whether all programs are right."""
    end, right = first + count, True
    while first < end:
        code, said = run(first, end - first, job)
        if code >= 0:
            return right and code == 0
        right &= "FAILED" not in said
        begun = BEGINS.findall(said)
        low, high = map(int, begun[-1]) if begun else (first, first)
        for seed in range(low, high + 1):
            right &= one(seed, job)
        first = high + 1
    return right


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--devices", type=int, default=8, help="of each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--whole-program", action="store_true", help="programs of plain jit, whose collectives the partitioner inserts"
    )
    options = parser.parse_args()
    job = Job(options.devices, options.processes, ("--whole-program",) if options.whole_program else ())
    right = supervise(options.seed, options.count, job)
    last = options.seed + options.count - 1
    print(f"{options.count} programs of seeds {options.seed} to {last}: {'all right' if right else 'some FAILED'}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
