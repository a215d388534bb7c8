"""Whole programs of `jaxring bench`: right, and their collectives ours. No test looks at a time."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxring.bench import report
from jaxring.bench.backends.jax_whole import WholeProgram
from jaxring.bench.programs import PROGRAMS, Program
from jaxring.bench.programs.operand import AXIS
from jaxring.cli import main


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("layout", "peer", "programs"),
    [
        ("1x2", "xla", ["gather", "tensor_parallel"]),
        pytest.param("1x2", "xla", list(PROGRAMS), marks=pytest.mark.slow),
        pytest.param("2x2", "gloo", ["gather", "tensor_parallel"], marks=pytest.mark.slow),
    ],
)
def test_programs_are_right_and_run_on_us(tmp_path, capsys, layout, peer, programs):
    saved, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = ["-n", layout, "-b", "4K", "-e", "4K", "-w", "1", "--iters", "2", "--peers", f"{peer},torch"]
    assert main(["bench", "--program", ",".join(programs), *options, "--json", str(saved), "--plot", str(plot)]) == 0
    found = report.load(saved)
    assert [(r.case.name, r.case.nbytes, r.peer) for r in found] == [
        (name, 4096, who) for name in programs for who in ("jaxring", peer)
    ]
    for r in found:
        assert (r.wrong, r.refused, len(r.times_us)) == (0, "", 2), r
        assert ("XLA's" in r.choice, "jaxring's" in r.choice) == (r.peer == peer, r.peer == "jaxring"), r
    shown = capsys.readouterr().out
    assert "program tensor_parallel" in shown
    assert "busbw" not in shown
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_element_is_counted():
    made = WholeProgram(Program("gather", 1024), Mesh(np.array(jax.devices()[:4]), (AXIS,)))
    assert made.wrong() == 0
    made._values[0] = made._values[0] + np.eye(1, 256, 3, dtype=np.float32)[0]
    assert made.wrong() == 4  # one on each device


def test_an_unknown_program_is_named(capsys):
    assert main(["bench", "--program", "sum,nonsense"]) == 1
    assert "--program nonsense: use sum, gather," in capsys.readouterr().err
