"""Random programs: some of fixed seeds, and in CI some of seeds that nobody has seen, other ones each day."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import starting

RUN = Path(__file__).with_name("run.py")
SUPERVISE = RUN.with_name("supervise.py")
# Other days' seeds are other programs. So many are a minute of CI's; each takes a second to compile.
A_DAY = 1000
OF_THE_DAY = 60
LIMIT_S = 1500
# In place of a program's check: it aborts at one seed, but for the reference alone.
ABORTS = """
import sys

if "--reference-only" not in sys.argv:
    import os
    import types

    run = types.ModuleType("tests.random.rnd_check")

    def check_many(groups):
        for group in groups:
            for program in group:
                if program.seed == 1203:
                    os.abort()
                yield types.SimpleNamespace(program=program, faults=[], refused="")

    run.check = run.replay = None
    run.check_many = check_many
    sys.modules["tests.random.rnd_check"] = run
"""
# Every all-reduce is refused, as one is that the engine cannot carry.
REFUSES = """
import sys

if "--whole-program" in sys.argv:
    from jaxring.dropin.whole_program import rewrite
    from jaxring.dropin.whole_program.unserved import UnservedError

    def refuse(body, calls, instruction):
        raise UnservedError("a test refuses it")

    rewrite._RULES["all-reduce"] = refuse
"""


def check(command, seed, count, devices, script=RUN, options=()):
    arguments = ["--seed", str(seed), "--count", str(count), "--devices", str(devices), *options]
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    done = starting.run(
        [*command, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment,
        starts=script == SUPERVISE or None,
    )
    print(done.stdout[-20000:])
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    assert f"{count} programs of seeds {seed} to {seed + count - 1}" in done.stdout
    return done.stdout


@pytest.mark.parametrize("first", [1200, 1212])
@pytest.mark.sampled(2)
def test_fixed_seeds(first):
    check([sys.executable], first, 12, 8)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_fixed_seeds_between_processes(processes, devices):
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", str(processes), "--devices-per-process", str(devices)]
    check(command, 2000, 8, devices)


@pytest.mark.parametrize("first", [3000, 3008])
@pytest.mark.sampled(2)
def test_whole_programs(first):
    """Of plain `jit`: what the partitioner inserts is right on the engine, and none of it is left to XLA."""
    said = check([sys.executable], first, 8, 8, options=("--whole-program",))
    assert "left to XLA: {}" in said


def test_what_is_left_to_xla_has_failed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(REFUSES)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command = [sys.executable, str(RUN), "--whole-program", "--seed", "3000", "--count", "4"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 1, done.stdout
    assert "FAILED # seed 300" in done.stdout
    assert "XLA's own collective: a test refuses it" in done.stdout
    assert re.search(r"left to XLA: \{'a test refuses it': [1-9]", done.stdout)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_whole_programs_between_processes():
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", "2"]
    said = check(command, 4000, 6, 2, options=("--whole-program",))
    assert "left to XLA: {}" in said


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_whole_programs_of_the_day(capsys):
    seed = 100_000 + A_DAY * (dt.datetime.now(dt.UTC).date() - dt.date(2026, 1, 1)).days
    with capsys.disabled():
        print(f"\nwhole programs of the day: python -m tests.random.run --whole-program --seed {seed}", flush=True)
    assert "left to XLA: {}" in check([sys.executable], seed, OF_THE_DAY, 8, options=("--whole-program",))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_seeds_of_the_day(capsys):
    days = (dt.datetime.now(dt.UTC).date() - dt.date(2026, 1, 1)).days
    seed = 100_000 + A_DAY * days
    with capsys.disabled():
        command = f"python -m tests.random.supervise --seed {seed} --count {OF_THE_DAY}"
        print(f"\nrandom programs of the day: {command}", flush=True)
    check([sys.executable], seed, OF_THE_DAY, 8, SUPERVISE)


@pytest.mark.slow
def test_an_abort_of_xla_is_not_taken_for_ours():
    """XLA's AlgebraicSimplifier aborts at jax.lax's own program of this seed (jaxlib 0.10.2 and 0.12.0.1)."""
    check([sys.executable], 7262, 1, 8, SUPERVISE)


@pytest.mark.slow
def test_an_abort_of_ours_has_failed(tmp_path):
    """A process that ends by a signal, and whose reference does not, has failed: the rest is checked all the same."""
    (tmp_path / "sitecustomize.py").write_text(ABORTS)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    command = [sys.executable, str(SUPERVISE), "--seed", "1200", "--count", "5", "--devices", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 1, done.stdout
    assert "FAILED seed 1203: the process ends by signal 6, and by the reference alone it does not" in done.stdout
    assert done.stdout.count("FAILED seed") == 1
    assert done.stdout.endswith("5 programs of seeds 1200 to 1204: some FAILED\n")
