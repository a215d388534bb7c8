"""Print what has run where: the table of support, each line with its proof.

    python tools/support_table.py [--write]

A proof is a lane of .ci/run, or what the suite of `python -m benchmarks.gpu` has left in docs/benchmarks: a stage that
ended well, or a test that passed. ValueError where a proof is missing. --write puts the table into README.md.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MARK = "<!-- tools/support_table.py -->\n"
GPU_RUN = "docs/benchmarks/h200/2026-11-27"


class Line(NamedTuple):
    """``proofs``: commands that .ci/run has, ``stage:NAME`` and ``test:NAME`` of the suite on a GPU."""

    part: str
    where: str
    proofs: tuple[str, ...] = ()


_SIMULATED = "never on GPUs: the kernels are compiled for CPUs, and the host code runs on a simulated GPU"
LINES = (
    Line("CPU engine on x86-64, shared memory, TCP; hosts are network namespaces", "hardware", ("make test",)),
    Line("CPU engine on 64-bit Arm", "emulated by qemu-user", ("make test-aarch64",)),
    Line("RDMA verbs on soft-RoCE and soft-iWARP", "in a guest", ("make test-rdma",)),
    Line("RDMA verbs on InfiniBand, RoCE and iWARP adapters", "nowhere yet"),
    Line(
        "CUDA engine, ranks on one GPU: all collectives, copy engines, failures",
        "hardware: H200",
        ("stage:native", "stage:memory", "stage:matrix", "stage:deaths", "stage:copy_deaths", "stage:racecheck"),
    ),
    Line(
        "CUDA engine under JAX, processes that share one GPU",
        "hardware: H200",
        ("stage:jax_smoke", "test:test_processes_share_a_gpu_under_jax[4]", "test:test_replays"),
    ),
    Line(
        "collectives that the compiler inserts, on GPUs",
        "hardware: H200",
        ("test:test_collectives_that_the_compiler_inserts[sharded]", "make gpu-programs"),
    ),
    Line("CUDA engine between GPUs (NVLink, PCIe)", _SIMULATED, ("make test",)),
    Line("NVLink switch (NVLS)", _SIMULATED, ("make test",)),
    Line("GPUDirect RDMA", "in a guest, with a simulated GPU", ("make test-rdma",)),
    Line(
        "CUDA kernels as nvcc compiles them",
        "their PTX translated for CPUs; machine code checked",
        ("make test-ptx", "make cuda"),
    ),
)


def check(line: Line) -> None:
    """ValueError if a proof of the line is missing."""
    lanes = (ROOT / ".ci/run").read_text()
    passed = {
        record["stage"] for record in json.loads((ROOT / GPU_RUN / "stages.json").read_text()) if not record["exit"]
    }
    raw = (ROOT / GPU_RUN / "raw.txt").read_text()
    for proof in line.proofs:
        kind, _, name = proof.partition(":")
        if kind == "stage":
            there = name in passed
        elif kind == "test":
            there = re.search(rf"PASSED tests/gpu/test_gpu\.py::{re.escape(name)} ?$", raw, re.MULTILINE) is not None
        else:
            there = re.search(rf"^ *{re.escape(proof)}\b(?!-)", lanes, re.MULTILINE) is not None
        if not there:
            raise ValueError(f"nothing shows that {line.part!r} ran ({line.where}): {proof} is missing")


def table() -> list[str]:
    """The lines of the table, which are checked."""
    found = ["| part | has run | shown by |", "|---|---|---|"]
    for line in LINES:
        check(line)
        of_suite = any(":" in proof for proof in line.proofs)
        shown = [f"`{proof}`" for proof in line.proofs if ":" not in proof]
        if of_suite:
            shown.insert(0, f"[`python -m benchmarks.gpu`]({GPU_RUN}/SUMMARY.md)")
        found.append(f"| {line.part} | {line.where} | {', '.join(shown)} |")
    return found


def with_table(page: str) -> str:
    """The page with the table as it is now, which follows its mark."""
    text = "\n".join(table())
    page, count = re.subn(rf"({re.escape(MARK)})(?:\|.*\n)*", lambda found: f"{found[1]}{text}\n", page)
    if count != 1:
        raise ValueError(f"README.md has no mark {MARK.strip()}")
    return page


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    page = ROOT / "README.md"
    if parser.parse_args().write:
        page.write_text(with_table(page.read_text()))
    print("\n".join(table()))


if __name__ == "__main__":
    main()
