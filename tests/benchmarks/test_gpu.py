"""The suite of the CUDA engine without a GPU: limits of stages, what they leave, measurements on the fake GPU."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import pytest

from benchmarks.gpu import measure, suite, summary
from benchmarks.gpu.suite import Stage
from jaxring.plan.schedule import Spec
from tests import ROOT, starting

FAKE = os.environ.get("TEST_CUDA_FAKE", "")


def test_without_a_gpu_it_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "gpus", lambda: 0)
    assert suite.main(["--out", str(tmp_path)]) == 2
    assert "There is no NVIDIA GPU here" in capsys.readouterr().err


def test_an_unknown_stage_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "gpus", lambda: 1)
    assert suite.main(["--out", str(tmp_path), "--stages", "info,nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


def test_it_needs_nothing_built_or_installed():
    command = [sys.executable, "-E", "-s", "-S", "-m", "benchmarks.gpu", "--help"]
    done = subprocess.run(command, check=True, timeout=60, cwd=ROOT, capture_output=True, text=True)
    assert "python -m benchmarks.gpu" in done.stdout


def test_a_stage_that_fails_or_takes_too_long_does_not_stop_the_others(tmp_path, capsys):
    def python(code):
        return (sys.executable, "-c", code)

    waits = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(100)'])"
    chosen = [
        Stage("fails", 20, python("print('it is broken'); raise SystemExit(3)")),
        Stage("waits", 0.5, python(waits)),
        Stage("absent", 20, python("1/0"), "there is no such tool"),
        Stage("works", 20, python("import os; print('fine,', os.environ['GIVEN'])"), "", {"GIVEN": "as asked"}),
    ]
    ended = suite.run_stages(chosen, tmp_path, 60)
    assert [record.get("exit") for record in ended] == [3, -15, None, 0]
    assert [record.get("cut_off") for record in ended] == [False, True, None, False]
    assert json.loads((tmp_path / "stages.json").read_text()) == ended
    raw = (tmp_path / "raw.txt").read_text()
    assert raw.index("it is broken") < raw.index("fine, as asked")
    assert "it is broken" in capsys.readouterr().out
    text = (tmp_path / "SUMMARY.md").read_text()
    assert "| absent | there is no such tool |" in text
    assert "cut off |" in text


def test_ctrl_c_ends_the_stage(tmp_path, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    sleeps = Stage("sleeps", 60, (sys.executable, "-c", "import time; time.sleep(60)"))
    try:
        with pytest.raises(KeyboardInterrupt):
            suite.run_stages([sleeps], tmp_path, 60)
        assert started[0].returncode == -signal.SIGTERM
    finally:
        started[0].kill()


def test_nothing_begins_when_the_time_is_over(tmp_path):
    (record,) = suite.run_stages([Stage("late", 5, ("false",))], tmp_path, 1)
    assert record == {"stage": "late", "left_out": "no time left"}


def test_every_stage_has_what_it_needs(tmp_path):
    stages = suite.stages(tmp_path, tmp_path)
    assert len({stage.name for stage in stages}) == len(stages)
    for stage in stages:
        for word in stage.command:
            if word.startswith((str(ROOT / "tests"), str(ROOT / "tools"))):
                assert pathlib.Path(word).exists()
            elif word.startswith("benchmarks."):
                assert (ROOT / (word.replace(".", "/") + ".py")).exists()


def test_what_is_least_certain_comes_last(tmp_path):
    names = [stage.name for stage in suite.stages(tmp_path, tmp_path)]
    assert names[:5] == ["machine", "build", "info", "jax_smoke", "native"]
    least = [name for name in names if "death" in name or "check" in name]
    assert names[-1 - len(least) :] == [*least, "cpu"]
    for stage in suite.stages(tmp_path, tmp_path):
        assert ("death" in shlex.join(stage.command)) == (stage.name in ("deaths", "copy_deaths"))
        if "tests/gpu" in shlex.join(stage.command) or stage.name == "jax_smoke":
            assert stage.environment["TEST_OUTPUT"] == str(tmp_path / "workers")
            assert float(stage.environment["TEST_JOB_SECONDS"]) <= stage.seconds


@pytest.mark.parametrize(
    ("name", "short"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090")],
)
def test_results_go_to_the_cards_folder(name, short):
    assert suite.short_name(name) == short


def row(us, **other):
    fields = {"kind": "collective", "collective": "all_reduce", "algorithm": "direct", "protocol": "memory", "fused": 1}
    return fields | {"lanes": 16, "us": us, "waited_us": us + 9, "empty_us": 3.0, "empty_waited_us": 8.0} | other


def test_the_summary_compares_with_what_was_asked_for():
    big = 256 << 20
    rows = [
        row(1000.0, ranks=8, bytes=big, copy_us=900.0),
        row(2000.0, ranks=8, bytes=big, copy_us=900.0, algorithm="ring"),
        row(1000.0, ranks=2, bytes=big, copy_us=900.0),
        row(7.0, ranks=8, bytes=32 << 10, copy_us=2.0, fused=0, alike_us=3.5, alike_waited_us=8.5),
        row(6.0, ranks=8, bytes=32 << 10, copy_us=2.0, fused=0, kind="graph", empty_us=1.5),
        {"kind": "jnp", "what": "to_all", "ranks": 8, "bytes": big, "us": 1500.0},
        {"kind": "nccl", "left_out": "NCCL 22809 allows one rank on a GPU"},
    ]
    rows.append({"kind": "nvls", "ranks": 8, "left_out": "the driver reports no multicast for GPU 0"})
    text = summary.summary([{"stage": "measure", "exit": 0, "seconds": 1.0}], rows)
    assert "8 ranks: at least 85% of a copy of as many bytes | 90% (direct/memory fused 1) |" in text
    # 256 MiB times 2 * 1 / 2 in a millisecond. Among 8 ranks one GPU cannot show so many.
    assert "2 ranks: at least 450 GB/s bus bandwidth | 268 GB/s |" in text
    assert text.count("GB/s bus bandwidth") == 1
    assert "one after another, with the host's launches of 8 ranks by one thread: no bar | 7.0 us; empty" in text
    assert "no bar | 16.0 us; empty launches 8.0 us, of as many blocks 8.5 us |" in text
    assert "in a graph: at most 5 us over an empty launch | 4.5 us over 1.5 us |" in text
    assert "| all_reduce | direct/memory fused 0 | 8 | 32768 | 16 | 6.0 | 4.5 |" in text
    assert "faster than jnp at every size | 1.50 times at worst" in text
    assert "NCCL 22809 allows one rank" in text
    assert "| nvls | 8 |  | the driver reports no multicast" in text


def test_lanes_are_swept_as_far_as_they_are_resident_together():
    assert list(measure.numbers_of_lanes([2, 8], [16, 32, 64], 1, 132)) == [(2, 16), (2, 32), (2, 64), (8, 16)]
    assert list(measure.numbers_of_lanes([8], [16, 32], 8, 132)) == [(8, 16), (8, 32)]


@pytest.mark.parametrize(
    ("collective", "inputs", "outputs"),
    [
        ("all_reduce", 8, 8),
        ("all_gather", 8, 64),
        ("reduce_scatter", 64, 8),
        ("all_to_all", 64, 64),
        ("broadcast", 1, 8),
        ("reduce", 8, 1),
        ("gather", 8, 8),
        ("scatter", 8, 8),
    ],
)
def test_a_copy_moves_what_the_collective_must_read_and_write(collective, inputs, outputs):
    spec = Spec(collective, 8, "direct", root=2)
    assert measure.moved_bytes(spec, 1 << 20) == (inputs + outputs) << 19


def measured(folder, *options):
    rows = folder / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu.measure", "--module", FAKE, "--rows", str(rows), *options]
    few = ["--ranks", "2", "--sizes", "1K", "--lanes", "2", "--threads", "64", "--launches", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    starting.run([*command, *few], check=True, timeout=120, env=environment, stdout=subprocess.DEVNULL)
    _, found = summary.read(folder)
    assert found[0]["name"] == "fake"
    return found


@pytest.mark.multiprocess
@pytest.mark.skipif(not FAKE, reason="TEST_CUDA_FAKE does not name _native_cuda_fake; use make pytest")
def test_it_measures_graphs_on_the_fake_gpu(tmp_path):
    found = measured(tmp_path, "--graphs")[1:]
    assert {r["kind"] for r in found} == {"graph"}
    assert all(r["us"] > 0 and r["waited_us"] == 0 and r["empty_us"] > 0 for r in found), found


@pytest.mark.multiprocess
@pytest.mark.skipif(not FAKE, reason="TEST_CUDA_FAKE does not name _native_cuda_fake; use make pytest")
def test_it_measures_what_the_fake_gpu_does(tmp_path):
    found = measured(tmp_path)
    assert {r["collective"] for r in found[1:]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
    }
    assert {r["collective"] for r in found[1:] if r["bulk"]} == {"all_reduce", "all_gather", "broadcast", "all_to_all"}
    # The fake has two GPUs, so each rank has one of its own.
    assert {r["collective"] for r in found[1:] if r["algorithm"] == "nvls"} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert all(r["us"] > 0 and r["waited_us"] > 0 and r["copy_us"] > 0 and r["empty_us"] > 0 for r in found[1:])


@pytest.mark.multiprocess
def test_it_measures_jnp(tmp_path):
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu.peers", "jnp", "--rows", str(rows)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    few = ["--ranks", "2", "--sizes", "1K", "--launches", "1"]
    starting.run([*command, *few], check=True, timeout=120, env=environment, stdout=subprocess.DEVNULL)
    _, found = summary.read(tmp_path)
    assert [(r["what"], r["ranks"], r["bytes"]) for r in found] == [("to_one", 2, 1024), ("to_all", 2, 1024)]
