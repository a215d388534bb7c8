"""Memory and disk space that are not to be had: an error on all ranks that says what, or a warning if it can go on."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.collectives.cases.coll_jobs import run_job

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

WORKER = pathlib.Path(__file__).parent / "worker_no_memory.py"
# In a mount namespace of its own: a record does not fit into $1, and /dev/shm is full.
_FULL = """
set -e
mount -t tmpfs -o size=64k tmpfs "$1"
mount -t tmpfs -o size=4k tmpfs /dev/shm
head -c 4096 /dev/zero > /dev/shm/full
shift
exec "$@"
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.sampled(2)
def test_links_and_scratch_without_memory(tmp_path, transport):
    env = {"JAXRING_BUFFSIZE": str(1 << 29), "JAXRING_SHM_DISABLE": "0" if transport == "shm" else "1"}
    env["MALLOC_ARENA_MAX"] = "1"  # further ones set 64 MiB of addresses aside, in which scratch would find room
    env["MALLOC_MMAP_THRESHOLD_"] = "131072"  # scratch that is freed is kept for the next otherwise
    code, output = run_job(WORKER, 2, 2, transport, timeout_s=100, **env)
    assert code == 0, output[-6000:]
    assert output.count("all told") == 2


PROGRAM = """
import jax, numpy as np
from tests.collectives.cases.coll_ranks import Ranks
import jaxring
r = Ranks(jax.devices())
for value in r.run(lambda v: {"y": jaxring.all_reduce(v, "x")}, np.ones((2, 3), np.float32))["y"].values():
    assert np.all(value == 2)
print("summed", flush=True)
"""


@pytest.mark.netns
def test_a_job_goes_on_where_its_record_and_shared_memory_have_no_room(tmp_path):
    script, folder = tmp_path / "program.py", tmp_path / "record"
    script.write_text(PROGRAM, encoding="utf-8")
    folder.mkdir()
    full = ("unshare", "--mount", "sh", "-c", _FULL, "sh", str(folder))
    if subprocess.run([*full, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("mount namespaces need root and util-linux")
    code, output = run_job(script, 2, 1, before=full, timeout_s=100, JAXRING_TRACE_DIR=str(folder))
    assert code == 0, output[-6000:]
    assert output.count("summed") == 2
    for process in range(2):
        (line,) = (line for line in output.splitlines() if line.startswith(f"[{process}] JAXRING_TRACE_DIR={folder} "))
        assert "cannot hold the flight record, which is kept in memory instead: " in line
        assert line.endswith(": No space left on device")
