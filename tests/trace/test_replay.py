"""Operations that fail leave their operands, which are played again: who held the NaN, and what was damaged."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import sys

import numpy as np
import pytest

from jaxring.cli import main
from jaxring.errors import JaxringError
from jaxring.plan import user
from jaxring.plan.algorithms import serving
from jaxring.plan.collectives import COLLECTIVES, Root
from jaxring.plan.epilogue import EpilogueSpec
from jaxring.runtime.plan_spec import PlanSpec
from jaxring.trace import operands, replay
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

WORKER = str(pathlib.Path(__file__).parent / "worker_replay.py")
RANKS = 4


def plan_spec(collective, algorithm, op, dtype="float32", domains=(0, 0, 1, 1), block=6):
    apart = tuple(range(RANKS)) if algorithm in ("ring", "tree", "halving_doubling") else domains
    perm = tuple((s, (s + 1) % RANKS) for s in range(RANKS - 1)) if collective == "permute" else ()
    root = 2 if COLLECTIVES[collective].root is not Root.NONE else 0
    return PlanSpec(collective, "both", algorithm, "simple", 1, apart, root, perm, dtype, op, block)


def failure(made, rows):
    names = [f"rank {r}" for r in range(RANKS)]
    return operands.Failure("a call", "a reason", 1, made, names, {r: row.tobytes() for r, row in enumerate(rows)})


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_what_numpy_says(collective):
    reduces = COLLECTIVES[collective].reduces
    for op in ("sum", "mean", "prod", "min") if reduces else (None,):
        for dtype in ("float32", "bfloat16", "complex64" if op in (None, "sum") else "float64", "int16"):
            if op == "mean" and dtype == "int16":
                continue
            for algorithm in serving(collective)[:3]:
                made = plan_spec(collective, algorithm, op, dtype)
                length = made.block * made.schedule().in_blocks
                rng = np.random.default_rng(7)
                rows = [(100 * rng.standard_normal(length)).astype(replay.numpy_dtype(dtype)) for _ in range(RANKS)]
                said = list(replay.explain(failure(made, rows)))
                assert len(said) == 2, (algorithm, op, dtype, said)
                assert "operands and arithmetic are well" in said[1]


def test_uneven_blocks():
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 9, (RANKS, RANKS)).astype(np.uint64)  # [from, to]
    lengths[1, 2] = 40
    begins, lands = (np.arange(RANKS, dtype=np.uint64) * np.uint64(k) for k in (50, 45))
    blocks = {r: np.stack([begins, lengths[r], lands, lengths[:, r]]) for r in range(RANKS)}
    made = plan_spec("all_to_all", "direct", None, block=0)
    rows = [rng.standard_normal(200).astype(np.float32) for _ in range(RANKS)]
    said = dataclasses.replace(failure(made, rows), blocks=blocks)
    results = replay.play(made, rows, blocks)
    for r in range(RANKS):
        for s in range(RANKS):
            n = int(lengths[s, r])
            np.testing.assert_array_equal(results[r][45 * s :][:n], rows[s][50 * r :][:n])
    assert "operands and arithmetic are well" in " ".join(replay.explain(said))
    rows[1][50 * 2 + 7] = np.inf
    assert "The operand of rank 1 holds infinity, first at element 107" in " ".join(
        replay.explain(dataclasses.replace(failure(made, rows), blocks=blocks))
    )
    with pytest.raises(ValueError, match="the buffers do not fit the plan"):
        replay.play(dataclasses.replace(made, channels=2), rows, blocks)
    blocks[1][1, 2] += np.uint64(1)
    with pytest.raises(ValueError, match="the ranks' blocks do not fit each other"):
        replay.play(made, rows, blocks)
    with pytest.raises(ValueError, match="the blocks of some ranks are not known"):
        replay.play(made, rows, {r: blocks[r] for r in range(RANKS - 1)})
    blocks[1][0, 2] = 199
    with pytest.raises(ValueError, match="a block lies outside its buffer"):
        replay.play(made, rows, blocks)


def test_a_plan_with_an_epilogue_is_not_played():
    """Its parameters and operands are not saved."""
    scaled = EpilogueSpec(functions=("scale",), result="float32")
    made = dataclasses.replace(plan_spec("all_reduce", "ring", "sum"), epilogue=scaled)
    with pytest.raises(ValueError, match="a plan with an epilogue cannot be played by itself"):
        replay.play(made, [np.ones(6, np.float32)] * RANKS)


def test_who_holds_what_and_where_it_overflows(monkeypatch):
    made = plan_spec("all_reduce", "ring", "sum", "float16")
    rows = [np.full(6, 1, np.float16) for _ in range(RANKS)]
    rows[2][3] = np.nan
    said = " ".join(replay.explain(failure(made, rows)))
    assert "The operand of rank 2 holds NaN, first at element 3; 1 are not finite." in said
    assert "all results are what float64 gives of these operands" in said
    rows[2][3] = 1
    for row in rows:
        row[5] = 40000
    said = " ".join(replay.explain(failure(made, rows)))
    assert "rank 0 is inf at element 5, and float64 gives 160000.0: float16 overflows" in said
    played = replay.play

    def damaged(*arguments):
        results = played(*arguments)
        results[1][4] += 1
        return results

    monkeypatch.setattr(replay, "play", damaged)
    rows = [np.full(6, 1, np.float16) for _ in range(RANKS)]
    said = " ".join(replay.explain(failure(made, rows)))
    assert "rank 1 is 5.0 at element 4, and float64 gives 4.0; 1 elements differ" in said
    partial = failure(made, rows)
    del partial.operands[3]
    assert "nothing is saved of rank 3" in " ".join(replay.explain(partial))


def test_a_saved_plan_spec_names_what_is_wrong_with_it():
    made = plan_spec("all_reduce", "ring", "sum")
    saved = json.loads(made.to_json("abcd"))
    assert saved["domains"] == [0, 1, 2, 3]
    assert PlanSpec.from_json(json.dumps(saved).encode()) == (made, ["a", "b", "c", "d"])
    earlier = {"nodes" if name == "domains" else name: value for name, value in saved.items()}
    assert PlanSpec.from_json(json.dumps(earlier).encode()) == PlanSpec.from_json(json.dumps(saved).encode())
    with pytest.raises(ValueError, match="unexpected fields: 'nodes'"):
        PlanSpec.from_json(json.dumps(saved | {"nodes": [0, 1, 2, 3]}).encode())
    with pytest.raises(ValueError, match="2 domains for 4 names"):
        PlanSpec.from_json(json.dumps(saved | {"domains": [0, 1]}).encode())
    with pytest.raises(ValueError, match="unexpected fields: 'more'"):
        PlanSpec.from_json(json.dumps(saved | {"more": 1}).encode())
    del saved["root"]
    with pytest.raises(ValueError, match="missing fields: root"):
        PlanSpec.from_json(json.dumps(saved).encode())
    with pytest.raises(ValueError, match="not an operand file"):
        operands.parse(bytes(200))


def run(tmp_path, case, **extra):
    folder = tmp_path / "traces"
    with coordinator_port() as port, Job(tmp_path) as job:
        for process in range(2):
            env = environment(2, JAXRING_TRACE_DIR=str(folder), **extra)
            job.start([sys.executable, WORKER, case], member(env, f"127.0.0.1:{port}", 2, process))
        results = job.wait(100)
    assert all(result.code == 0 for result in results), str(job)
    return folder


def damage(good):
    """Whatever becomes of a file, reading it ends in what it holds or in ValueError."""
    generator = random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(400)] = generator.choice((0, 1, 127, 128, 255))
        try:
            operands.parse(bytes(data[: generator.choice((len(data), generator.randrange(len(data))))]))
        except ValueError:
            continue


@pytest.mark.multiprocess
def test_a_nan_in_a_job(tmp_path, capsys):
    folder = run(tmp_path, "nan", JAXRING_NAN_CHECK="error", JAXRING_SAVE_OPERANDS="1000000")
    files = sorted(folder.glob("*.operands"))
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert main(["trace", "replay", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "jaxring.all_reduce sum of float32[1000] over 'x' at worker_replay.py" in said
    assert "The operand of rank 3 (process 1 on" in said
    assert "holds NaN, first at element 7; 1 are not finite." in said
    assert said.count("holds NaN, first") == 1 + said.split("\n")[0].count("holds NaN, first")
    assert "all results are what float64 gives of these operands" in said
    good = files[0].read_bytes()
    damage(good)
    files[0].write_bytes(good[:-1])
    with pytest.raises(JaxringError, match="holds no operands of this version of jaxring: its parts do not fit"):
        operands.failures(folder)


@pytest.mark.multiprocess
def test_uneven_blocks_of_a_job(tmp_path, capsys):
    folder = run(tmp_path, "ragged", JAXRING_NAN_CHECK="error", JAXRING_SAVE_OPERANDS="1000000")
    assert main(["trace", "replay", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "ragged_all_to_all of float32[500,2] over 'x' at worker_replay.py" in said
    assert "The operand of rank 3 (process 1 on" in said
    assert "holds NaN, first at element 40; 1 are not finite." in said
    assert "all results are what float64 gives of these operands" in said
    for path in folder.glob("*.operands"):
        damage(path.read_bytes())


@pytest.mark.multiprocess
def test_an_algorithm_of_the_users_own(tmp_path, capsys, monkeypatch):
    folder = run(tmp_path, "own", JAXRING_NAN_CHECK="error", JAXRING_SAVE_OPERANDS="1000000")
    assert main(["trace", "replay", str(folder), "--import", "no_such_module"]) == 1
    assert "Cannot import no_such_module" in capsys.readouterr().err
    monkeypatch.setattr(user, "_registered", {})
    assert main(["trace", "replay", str(folder)]) == 0
    assert "its algorithm 'test_chain' is the job's own; --import what registers it" in capsys.readouterr().out
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parents[1] / "user"))
    monkeypatch.delitem(sys.modules, "test_user_algorithm", raising=False)
    assert main(["trace", "replay", str(folder), "--import", "test_user_algorithm"]) == 0
    said = capsys.readouterr().out
    assert "holds infinity, first at element 7; 1 are not finite." in said
    assert "Played again by test_chain" in said
    assert "all results are what float64 gives of these operands" in said


@pytest.mark.multiprocess
def test_a_message_that_was_damaged(tmp_path, capsys):
    """The operand was donated: what is saved is what it was before the result came over it."""
    folder = run(
        tmp_path,
        "damaged",
        JAXRING_SAVE_OPERANDS="1000000",
        JAXRING_CHECKSUM="1",
        JAXRING_FAULTS="seed=1,corrupt=1,data_only=1",
    )
    assert main(["trace", "replay", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "all_reduce sum of float32[1000] over 'x'" in said
    assert "operands and arithmetic are well, and what failed lies between the processes" in said
    (found,) = operands.failures(folder)
    for rank, raw in found.operands.items():
        np.testing.assert_array_equal(np.frombuffer(raw, np.float32), np.full(1000, rank + 1, np.float32))


@pytest.mark.multiprocess
def test_no_more_is_saved_than_was_asked_for(tmp_path, capsys):
    folder = run(tmp_path, "nan", JAXRING_NAN_CHECK="error", JAXRING_SAVE_OPERANDS="7999")
    assert not list(folder.glob("*.operands"))
    assert main(["trace", "replay", str(folder)]) == 1
    assert "No operands are saved in" in capsys.readouterr().err
