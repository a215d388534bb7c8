"""Whole programs between processes, in scripts that do not import jaxring."""

from __future__ import annotations

import os
import pathlib
import sys

import numpy as np
import pytest

from jaxring.trace import operands
from tests import ROOT, starting

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]
HERE = pathlib.Path(__file__).parent

MISMATCH = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((8, 8), NamedSharding(mesh, P("x")), lambda i: np.ones((8, 8), np.float32)[i])
@jax.jit
def step(x):
    if jax.process_index() == 0:
        return x.sum(0)  # zero's
    return x.max(0)  # one's
print(step(x))
"""


def run(script, *options, **environment):
    base = {k: v for k, v in os.environ.items() if not k.startswith(("JAXRING_", "JAX_", "PJRT_"))}
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", "2", *options]
    done = starting.run(
        [*command, str(script)], env=base | environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("transport", ["shared memory", "TCP"])
@pytest.mark.sampled(2)
def test_a_job(transport):
    code, out, err = run(HERE / "wp_job.py", "--install", "whole", JAXRING_SHM_DISABLE=str(int(transport == "TCP")))
    assert code == 0, out + err
    assert out.count("right") == 2


@pytest.mark.parametrize("transport", ["shared memory", "TCP"])
@pytest.mark.sampled(2)
def test_a_job_of_collectives_that_the_partitioner_does_not_insert(transport):
    settings = {"JAXRING_SHM_DISABLE": str(int(transport == "TCP")), "PYTHONPATH": str(ROOT)}
    code, out, err = run(HERE / "wp_exported.py", **settings)
    assert code == 0, out + err
    assert out.count("right") == 2


def test_programs_that_differ_are_an_error_that_names_the_users_lines(tmp_path):
    script = tmp_path / "differs.py"
    script.write_text(MISMATCH)
    code, out, err = run(script, "--install", "whole", TMPDIR=str(tmp_path))  # where the flight records go
    assert code != 0
    assert "the processes run different programs" in err, out + err
    lines = {text: number for number, text in enumerate(MISMATCH.splitlines(), 1)}
    for op, end in (("sum", "# zero's"), ("max", "# one's")):
        (line,) = [number for text, number in lines.items() if text.endswith(end)]
        where = (
            f"jaxring.all_reduce {op} of float32[8] over 4 of 4 devices at differs.py:{line} (jit(step)/reduce_{op})"
        )
        assert where in err, err
    assert all(f"rank {2 * process} (process {process} on " in err for process in (0, 1)), err


NAN = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
whole = np.arange(96, dtype=np.float32).reshape(8, 12)
whole[5, 4] = np.nan
x = jax.make_array_from_callback((8, 12), NamedSharding(mesh, P("x")), lambda index: whole[index])
jax.block_until_ready(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P(None, "x")))(x))
"""


def test_the_operands_of_an_all_to_all_that_fails_are_saved(tmp_path):
    """Each is several buffers in the program, and one in the file."""
    script, traces = tmp_path / "nan.py", tmp_path / "traces"
    script.write_text(NAN)
    settings = {"NAN_CHECK": "error", "SAVE_OPERANDS": "1000000", "TRACE_DIR": str(traces)}
    code, out, err = run(script, "--install", "whole", **{f"JAXRING_{name}": value for name, value in settings.items()})
    assert code != 0
    assert "the operand of rank 2 (process 1" in err, out + err
    assert "holds NaN, first at element 10" in err
    (failure,) = operands.failures(traces)
    whole = np.arange(96, dtype=np.float32).reshape(8, 12)
    whole[5, 4] = np.nan
    for rank, data in failure.operands.items():
        blocks = np.stack(np.split(whole[2 * rank : 2 * rank + 2], 4, axis=1))
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), blocks.ravel())


@pytest.mark.parametrize(("install", "whole", "lax"), [("lax", False, True), ("whole", True, True)])
def test_the_variable_installs_at_the_import(install, whole, lax):
    """Without a start of JAX's backends, after which `jax.distributed.initialize` would be refused."""
    script = (
        "import jax, jaxring; from jaxring import dropin; from jax._src import xla_bridge;"
        "print(bool(dropin._undo_whole), bool(dropin._undo_rules), xla_bridge.backends_are_initialized())"
    )
    environment = {**os.environ, "JAXRING_INSTALL": install}
    done = starting.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == [str(whole), str(lax), "False"], done.stderr
