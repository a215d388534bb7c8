"""The demo's parts, and the demo itself cut short."""

import os
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest

from lm import model, report
from lm.data import Corpus
from lm.train import Run, count_collectives
from tests import starting

SCRIPT = Path(__file__).parents[2] / "examples" / "train_lm.py"
TINY = ["--steps", "4", "--width", "32", "--layers", "1"]


def run_script(command: list[str], tmp_path: Path, *options: str) -> str:
    # PJRT_NPROC: room for every device's launch at once, however few cores there are.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "16"}
    plot = tmp_path / "plots" / "loss.png"
    done = starting.run(
        [*command, str(SCRIPT), *TINY, *options, "--plot", str(plot)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    return done.stdout


def a_run(name: str, last: float, *, xla: int = 0, ours: int = 3) -> Run:
    return Run(name, [5.5, last], last, 1.0, 100, xla_collectives=xla, jaxring_collectives=ours)


def test_corpus_is_the_same_each_time_and_split_by_file():
    one, two = Corpus(limit_bytes=1 << 20), Corpus(limit_bytes=1 << 20)
    assert one.files > 20
    np.testing.assert_array_equal(one.train, two.train)
    assert len(one.held_out) < len(one.train) / 5
    assert one.held_out[:2000].tobytes() not in one.train.tobytes()


def test_batches_depend_on_seed_and_step_alone():
    corpus = Corpus(limit_bytes=1 << 20)
    batch = corpus.batch(3, seed=1, rows=5, length=16)
    assert batch.shape == (5, 17)
    np.testing.assert_array_equal(batch, corpus.batch(3, seed=1, rows=5, length=16))
    assert not np.array_equal(batch, corpus.batch(4, seed=1, rows=5, length=16))
    assert not np.array_equal(batch, corpus.batch(3, seed=2, rows=5, length=16))


@pytest.mark.slow
def test_model_starts_at_chance_and_sees_no_future():
    config = model.Config(context=16, width=32, heads=2, layers=1)
    params = model.init(config, jax.random.key(0))
    text = np.random.default_rng(0).integers(0, 256, (4, 17)).astype(np.uint8)
    assert float(jax.jit(model.loss)(params, text)) == pytest.approx(np.log(256), abs=0.2)

    first_half = jax.jit(jax.grad(lambda positions: model.loss(params | {"positions": positions}, text[:, :9])))
    assert np.all(np.asarray(first_half(params["positions"]))[8:] == 0)


def test_problems_are_found():
    assert report.problems([a_run("jaxring", 2.5), a_run("psum", 2.5 + 1e-6, xla=1, ours=0)], devices=8) == []
    assert "last loss" in report.problems([a_run("jaxring", 2.5), a_run("psum", 2.5001)], devices=8)[0]
    assert "collectives of XLA's" in report.problems([a_run("jaxring", 2.5, xla=1)], devices=8)[0]
    assert "did not fall" in report.problems([a_run("psum", 5.6)], devices=8)[0]
    assert report.problems([a_run("jaxring", float("nan")), a_run("psum", float("nan"))], devices=8)


def test_collectives_are_counted():
    hlo = """
      %a = f32[3] all-reduce(%p), channel_id=1
      %b = (f32[3], f32[3]) all-reduce-start(%p)
      %c = f32[3] custom-call(%p), custom_call_target="jaxring_run", api_version=API_VERSION_TYPED_FFI
    """
    assert count_collectives(hlo) == (2, 1)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("devices", "collective"), [(1, "psum"), (2, "both")])
def test_one_process(devices, collective, tmp_path):
    out = run_script([sys.executable], tmp_path, "--devices", str(devices), "--collective", collective)
    assert f"1 processes, {devices} devices" in out
    assert ("last losses differ by" in out) == (collective == "both")


@pytest.mark.multiprocess
@pytest.mark.slow
def test_job_of_two_processes(tmp_path):
    out = run_script(
        [f"{sysconfig.get_path('scripts')}/jaxring", "run", "-n", "2", "--devices-per-process", "2"], tmp_path
    )
    assert "2 processes, 4 devices" in out
    assert "last losses differ by" in out
