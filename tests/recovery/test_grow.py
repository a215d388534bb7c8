"""A job to which processes are added, and which loses one in between, ends with the weights of an undisturbed one."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

from tests.recovery import grow_job
from tests.stress.stress_jobs import Job, coordinator_port, environment

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

SCRIPT = str(pathlib.Path(__file__).parent / "grow_job.py")
ANEW = """
import sys
import jax
import numpy as np
from jax.sharding import PartitionSpec as P
import jaxring

print("formed", jaxring.rebuild(60, size=2, coordinator=sys.argv[1]).processes, jax.process_count())
mesh = jax.make_mesh((2,), ("x",))
x = jax.make_array_from_callback((2,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(1.0, 3.0)[i])
total = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
print("sum", np.asarray(total.addressable_data(0)))
"""


def test_a_job_of_the_launcher_is_formed_anew(tmp_path):
    script = tmp_path / "anew.py"
    script.write_text(ANEW, encoding="utf-8")
    with Job(tmp_path) as job, coordinator_port() as port:
        command = ["-m", "jaxring.cli", "run", "-n", "2", str(script), f"127.0.0.1:{port}"]
        job.start([sys.executable, *command], environment())
        (result,) = job.wait(120)
    assert result.code == 0, result
    assert sorted(result.out.splitlines()) == [
        f"[{p}] {line}" for p in (0, 1) for line in ("formed (0, 1) 2", "sum [3.]")
    ]


@pytest.mark.slow
def test_a_job_grows_loses_a_process_and_grows_again(tmp_path):
    with Job(tmp_path) as job, coordinator_port() as one, coordinator_port() as two, coordinator_port() as three:
        at = [f"127.0.0.1:{port}" for port in (one, two, three)]
        env = environment(JAX_ENABLE_RECOVERABILITY="1")
        for arguments in (
            ("first", at[0], "0", "2", at[1], at[2]),
            ("victim", at[0], "1", "2", at[1], at[2]),
            ("joiner", at[1], "2", "3", at[2]),
            ("joiner", at[2], "2", "3"),
        ):
            job.start([sys.executable, "-X", "faulthandler", SCRIPT, *arguments], env)
        results = job.wait(150)
    assert [result.code for result in results] == [0, -9, 0, 0], str(job)
    w = np.zeros(4)
    for _ in range(3 * grow_job.STEPS):
        w = w - grow_job.RATE / grow_job.ROWS * (grow_job.X.T @ (grow_job.X @ w - grow_job.Y))
    ends = {line for result in results for line in result.out.splitlines() if line.startswith("end ")}
    assert len(ends) == 1, ends  # the same bits everywhere
    _, steps, bits = ends.pop().split()
    assert int(steps) == 3 * grow_job.STEPS
    np.testing.assert_allclose(np.frombuffer(bytes.fromhex(bits), np.float32), w, rtol=1e-5)
    assert "grown to (0, 1, 2)" in results[0].out
    assert "lost at step " in results[0].out
