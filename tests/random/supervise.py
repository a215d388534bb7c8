"""Checks random programs in processes of their own: ``python -m tests.random.supervise --seed 0 --count 200``.

XLA ends the process at some of `jax.lax`'s own programs, by an abort in a pass of its compiler. When a process ends so,
its last programs are checked one by one, each in a process of its own, and the rest in a new one. A program whose
reference alone ends the process is one that jax.lax refuses; any other that ends the process has failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

BEGINS = re.compile(r"^seeds (\d+) to (\d+)$", re.MULTILINE)


def run(first: int, count: int, devices: int, *options: str) -> tuple[int, str]:
    """Checks programs in one process, and shows what it says. Returns its exit code and its output."""
    command = [sys.executable, "-m", "tests.random.run", "--seed", str(first), "--count", str(count)]
    child = subprocess.Popen(
        [*command, "--devices", str(devices), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    said = []
    try:
        for line in child.stdout:
            said.append(line)
            print(line, end="", flush=True)
    finally:
        child.kill()
        child.wait()
    return child.returncode, "".join(said)


def one(seed: int, devices: int) -> bool:
    """Whether a program is right, or one at which XLA ends the process for jax.lax, too."""
    code, _ = run(seed, 1, devices)
    if code >= 0:
        return code == 0
    reference, _ = run(seed, 1, devices, "--reference-only")
    if reference < 0:
        print(f"  jax.lax refuses seed {seed}: XLA ends the process by signal {-reference}", flush=True)
        return True
    print(f"FAILED seed {seed}: the process ends by signal {-code}, and by the reference alone it does not", flush=True)
    return False


def supervise(first: int, count: int, devices: int) -> bool:
    """Whether all programs are right."""
    end, right = first + count, True
    while first < end:
        code, said = run(first, end - first, devices)
        if code >= 0:
            return right and code == 0
        right &= "FAILED" not in said
        begun = BEGINS.findall(said)
        low, high = map(int, begun[-1]) if begun else (first, first)
        for seed in range(low, high + 1):
            right &= one(seed, devices)
        first = high + 1
    return right


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--devices", type=int, default=8)
    options = parser.parse_args()
    right = supervise(options.seed, options.count, options.devices)
    last = options.seed + options.count - 1
    print(f"{options.count} programs of seeds {options.seed} to {last}: {'all right' if right else 'some FAILED'}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
