"""Whole programs for GPUs, compiled by JAX's own CUDA plugin where there is no GPU: what the final programs hold.

Run by `make gpu-programs`, which gets the plugin, and the jax that it is for, into a folder of their own: an installed
plugin is found by every process that imports JAX.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.dropin.whole_program.gpu.gpu_programs import PLAYED, PROGRAMS

FOLDER = Path(__file__).parent
COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast|ragged-all-to-all|"
    r"async)(?:-start|-done|-update)?\("
)
# The custom calls in order, and how many collectives each has.
CALLS = {
    "data_parallel": [("all_reduce", 4)],
    "fully_sharded": [("all_gather", 3), ("all_reduce", 1), ("reduce_scatter", 3)],
    "tensor_parallel": [("all_reduce", 1), ("all_reduce", 1)],
    "reshards": [
        *[("all_to_all", 1), ("permute", 1), ("all_to_all", 1)],
        *[("all_gather", 1), ("all_gather", 1), ("permute", 1)],
    ],
    "experts": [("start_all_to_all", 1), ("join", 0), ("start_all_to_all", 1), ("join", 0)],
    "apart": [("all_reduce", 1)] * 3,
    "called": [("all_reduce", 1)] * 2,
}


def run(worker: str, folder: Path) -> str:
    command = [sys.executable, str(FOLDER / worker), str(folder)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ["TEST_CUDA_PLUGIN"], str(ROOT)]),
        "JAXRING_TIMEOUT": "60",
        "JAXRING_P2P": "shared",  # the GPUs of the fake have the same names in each process
        "XLA_FLAGS": "",  # not the tests' own: the programs are those that users get
    }
    process = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    assert process.returncode == 0, process.stdout
    return process.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    run("gpu_compile.py", folder)
    return folder


class Call:
    """A custom call of ours in the final program."""

    def __init__(self, line: str) -> None:
        self.name = re.match(r"\s*(?:ROOT )?%(\S+) = ", line)[1]
        self.what = re.search(r'custom_call_target="jaxring_(\w+)"', line)[1]
        self.operands = re.findall(r"%([\w.-]+)", re.search(r" custom-call\(([^)]*)\)", line)[1])
        self.collectives = line.count(r"\22collective\22")
        self.aliases = re.findall(r"\{(\d*)\}: \((\d+), \{\}\)", line)


def calls(programs: Path, name: str) -> list[Call]:
    lines = (programs / f"{name}.txt").read_text().splitlines()
    return [Call(line) for line in lines if 'custom_call_target="jaxring_' in line]


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_collectives_are_calls(programs, name):
    assert not COLLECTIVE.search((programs / f"{name}.txt").read_text())
    assert [(call.what, call.collectives) for call in calls(programs, name)] == CALLS[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_needs_the_one_before_it(programs, name):
    """By the partition's number, which it hands on in the same memory."""
    text = (programs / f"{name}.txt").read_text()
    chained = [call for call in calls(programs, name) if call.what != "join"]
    for former, call in itertools.pairwise(chained):
        link = re.search(
            rf"%{re.escape(call.operands[-1])} = u32\[\] get-tuple-element\(%([\w.-]+)\), index=(\d+)", text
        )
        assert link, f"{call.name} takes its partition from elsewhere"
        assert link[1] == former.name
        assert (link[2], str(len(former.operands) - 1)) in former.aliases


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_go_into_cuda_graphs(programs, name):
    """All but a start and its join."""
    steps = (programs / f"{name}.thunks").read_text().splitlines()
    here = [step for step in steps if "kCustomCall" in step]
    assert len(here) == len(CALLS[name])
    outside = [step for step in here if not step.startswith(" ")]
    apart = [what for what, _ in CALLS[name] if what.startswith("start_") or what == "join"]
    assert len(outside) == len(apart)
    assert bool(apart) or any("kCommandBuffer" in step for step in steps)


def test_other_work_lies_between_a_start_and_its_join(programs):
    lines = (programs / "experts.txt").read_text().partition("\nENTRY")[2].splitlines()
    marks = [i for i, line in enumerate(lines) if 'custom_call_target="jaxring_' in line]
    between = lines[marks[-2] : marks[-1]]
    assert sum("gemm" in line or " dot(" in line for line in between) >= 2, between


@pytest.mark.parametrize("name", PROGRAMS)
def test_explain_lists_each_collective_with_its_place(programs, name):
    lines = (programs / f"{name}.explain").read_text().splitlines()
    assert len(lines) == sum(count for _, count in CALLS[name])
    for line in lines:
        assert ("called by the program" if name == "called" else "inserted by XLA") in line
        assert line.endswith("; chosen when it first runs")
        assert ", started and joined later;" in line or name != "experts"
        assert re.search(r" at (gpu_programs\.py:\d+( \(jit\(|:)|weights\[\d\]:)", line), line


def test_the_modules_compute_what_xla_computes(programs):
    """Run on the fake GPU, at a smaller size and with more that is started."""
    output = run("gpu_play.py", programs)
    started = set()
    for name in PLAYED:
        found = re.search(rf"^{name}: right, by (.+)$", output, re.MULTILINE)
        assert found, output
        started.update(call for call in found[1].split() if call.startswith("start_"))
    # The start of all-gathers has several operands.
    assert {"start_all_reduce", "start_all_gather", "start_all_to_all"} <= started
