"""Random programs: some of fixed seeds, and in CI 200 of seeds that nobody has seen, other ones each day."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
# Other days' seeds are other programs.
A_DAY = 1000
LIMIT_S = 1500


def check(command, seed, count, devices):
    arguments = ["--seed", str(seed), "--count", str(count), "--devices", str(devices)]
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    done = subprocess.run(
        [*command, str(RUN), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment
    )
    print(done.stdout[-20000:])
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    assert f"{count} programs of seeds {seed} to {seed + count - 1}" in done.stdout


def test_fixed_seeds():
    check([sys.executable], 1200, 24, 8)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_fixed_seeds_between_processes(processes, devices):
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", str(processes), "--devices-per-process", str(devices)]
    check(command, 2000, 8, devices)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_seeds_of_the_day(capsys):
    days = (dt.datetime.now(dt.UTC).date() - dt.date(2026, 1, 1)).days
    seed = 100_000 + A_DAY * days
    with capsys.disabled():
        print(f"\nrandom programs of the day: python -m tests.random.run --seed {seed} --count 200", flush=True)
    check([sys.executable], seed, 200, 8)
