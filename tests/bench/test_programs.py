"""Whole programs of `jaxring bench`: right, and their collectives ours. No test looks at a time."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxring.bench import report
from jaxring.bench.backends import jax_alone
from jaxring.bench.backends.jax_alone import CollectivesAlone
from jaxring.bench.backends.jax_whole import WholeProgram
from jaxring.bench.programs import PROGRAMS, Program
from jaxring.bench.programs.inserted import Inserted, inserted
from jaxring.bench.programs.operand import AXIS
from jaxring.cli import main
from jaxring.errors import JaxringError


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


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("layout", "peer", "programs"),
    [
        ("1x2", "xla", ["fft"]),
        pytest.param("1x2", "xla", list(PROGRAMS), marks=pytest.mark.slow),
        pytest.param("2x2", "gloo", list(PROGRAMS), marks=pytest.mark.slow),
    ],
)
def test_collectives_alone_are_right_and_run_on_us(tmp_path, capsys, layout, peer, programs):
    saved = tmp_path / "out.json"
    options = ["-n", layout, "-b", "4K", "-e", "4K", "-w", "1", "--iters", "2", "--peers", peer, "--json", str(saved)]
    assert main(["bench", "--program", ",".join(programs), "--alone", "--chain", "3", *options]) == 0
    found = report.load(saved)
    assert [(r.case.name, r.case.alone, r.case.chain, r.peer) for r in found] == [
        (name, True, 3, who) for name in programs for who in ("jaxring", peer)
    ]
    for r in found:
        assert (r.wrong, r.refused, len(r.times_us)) == (0, "", 2), r
        assert ("XLA's" in r.choice, "jaxring's" in r.choice) == (r.peer == peer, r.peer == "jaxring"), r
    fft = next(r for r in found if r.case.name == "fft" and r.peer == peer)
    assert fft.choice == "6 XLA's"  # two transpositions, three times
    assert "collectives of program fft, " in capsys.readouterr().out


def test_the_collectives_of_a_program_are_found_with_their_shapes():
    mesh = Mesh(np.array(jax.devices()[:4]), (AXIS,))
    float32 = np.dtype(np.float32)

    def of(name: str) -> list[Inserted]:
        return inserted(WholeProgram(Program(name, 4096), mesh).compiled())

    assert of("sum") == [Inserted("all-reduce", (((1024,), float32),))]
    assert of("gather") == [Inserted("all-gather", (((256,), float32),))]
    assert of("roll") == [Inserted("collective-permute", (((1024,), float32),), pairs=((0, 1), (1, 2), (2, 3), (3, 0)))]
    assert [each.opcode for each in of("reshard")] == ["all-to-all", "collective-permute", "all-to-all", "all-gather"]
    assert {"all-gather", "all-reduce"} < {each.opcode for each in of("fsdp")}


@pytest.mark.parametrize("opcode", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"])
def test_a_wrong_element_of_a_collective_alone_is_counted(monkeypatch, opcode):
    mesh = Mesh(np.array(jax.devices()[:4]), (AXIS,))
    listed = [Inserted(opcode, (((8, 4), np.dtype(np.float32)),), 0, ((0, 1), (1, 2), (2, 0)))]
    monkeypatch.setattr(jax_alone, "inserted", lambda _: listed * 2)
    made = CollectivesAlone(Program("sum", 1024, alone=True, chain=2), mesh, lambda: None)
    assert made.wrong() == 0
    right = Inserted.expected
    monkeypatch.setattr(Inserted, "expected", lambda self, every: [x + (x == x.flat[5]) for x in right(self, every)])
    assert made.wrong() >= 4  # one of each rank


def test_a_collective_of_some_devices_is_not_run_alone():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    rows, whole = (NamedSharding(mesh, spec) for spec in (P("x"), P()))
    lowered = jax.jit(lambda x: x, out_shardings=whole).lower(jax.ShapeDtypeStruct((4, 4), np.float32, sharding=rows))
    with pytest.raises(JaxringError, match=r"all-gather .* cannot be run alone: it is not over all devices"):
        inserted(lowered.compile())


def test_alone_without_a_program_is_refused(capsys):
    assert main(["bench", "all_reduce", "--alone"]) == 1
    assert "--alone is of --program" in capsys.readouterr().err


def test_a_wrong_element_is_counted():
    made = WholeProgram(Program("gather", 1024), Mesh(np.array(jax.devices()[:4]), (AXIS,)))
    assert made.wrong() == 0
    made._values[0] = made._values[0] + np.eye(1, 256, 3, dtype=np.float32)[0]
    assert made.wrong() == 4  # one on each device


def test_an_unknown_program_is_named(capsys):
    assert main(["bench", "--program", "sum,nonsense"]) == 1
    assert "--program nonsense: use sum, gather," in capsys.readouterr().err
