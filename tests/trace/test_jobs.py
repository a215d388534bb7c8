"""The flight records of one job among others: chosen by `jaxring trace dump`, counted by `jaxring trace diff`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxring.cli import main
from jaxring.errors import JaxringError
from jaxring.runtime.reporting import viewing
from jaxring.trace import diff, jobs
from jaxring.trace.flight import parse, read
from jaxring.world.connections import handshake
from tests import starting
from tests.stress.stress_jobs import ROOT, Job, environment
from tests.trace.trace_records import flight, record

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

PROGRAM = """
import os, pathlib, signal, sys
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import jaxring
me, n = jax.process_index(), jax.device_count()
mesh = jax.make_mesh((n,), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(float(n))[i])
f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
for step in range(int(sys.argv[1])):
    if step == 3 and me == 1:
        break
    if step == 3:
        print("last step of", me, flush=True)
    f(x).block_until_ready()
print("pid of", me, "is", os.getpid(), flush=True)
signal.pause()
"""


def launch(job, folder, processes, steps):
    script = folder / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", str(processes), str(script), str(steps)]
    left = folder / "left"
    left.mkdir()
    env = environment(TMPDIR=str(left))
    env["PYTHONPATH"] = str(ROOT)
    return job.start(command, env)


def dumped(capsys, *arguments):
    """The records that `jaxring trace dump` saves, by process."""
    assert main(["trace", "dump", *map(str, arguments)]) == 0
    paths = [pathlib.Path(line) for line in capsys.readouterr().out.splitlines()]
    found = {read(path).process: path for path in paths}
    assert len(found) == len(paths)
    return found


def pid_of(job, process):
    return int(job.wait_for_line(0, f"[{process}] pid of {process} is ").split()[-1])


@pytest.mark.slow
def test_a_missing_record_is_counted_and_a_dump_takes_the_job_s_processes(tmp_path, capsys):
    with Job(tmp_path) as job:
        launcher = launch(job, tmp_path, 3, 4)
        culprit = pid_of(job, 1)
        for process in (0, 2):
            job.wait_for_line(0, f"[{process}] last step of {process}")
        # Until both are in the step that process 1 leaves out.
        deadline, tries = time.monotonic() + 60, 0
        while True:
            files = dumped(capsys, "--job", launcher.pid, "-o", tmp_path / "new" / str(tries))
            assert sorted(files) == [0, 1, 2], "of the job's processes, not of the launcher"
            if all(read(files[process]).records[-1].state == "running" for process in (0, 2)):
                break
            assert time.monotonic() < deadline
            tries += 1
        assert {path: read(path).job for path in files.values()} == dict.fromkeys(files.values(), read(files[0]).job)
        by_process = dumped(capsys, "--job", culprit, "-o", tmp_path / "again")
        assert [read(by_process[p]).pid for p in (0, 1, 2)] == [read(files[p]).pid for p in (0, 1, 2)]
        assert sorted(dumped(capsys, "--job", read(files[0]).job, "-o", tmp_path / "named")) == [0, 1, 2]

        assert main(["trace", "diff", *map(str, files.values())]) == 1
        assert f"Process 1 (pid {culprit} on " in capsys.readouterr().out
        os.kill(culprit, signal.SIGKILL)
        (result,) = job.wait(100)
    assert result.code == 128 + signal.SIGKILL, str(result)
    left = sorted((tmp_path / "left").iterdir())
    assert sorted(read(path).process for path in left) == [0, 2], str(result)
    assert main(["trace", "diff", *map(str, left)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("There is no record of process 1 (of 3): maybe it has not begun jaxring.all_reduce sum "), (
        said
    )
    assert ", execution 3, which others have: process 0 (pid " in said


def test_a_process_has_its_name_before_its_first_collective(tmp_path, capsys):
    with Job(tmp_path) as job:
        launcher = launch(job, tmp_path, 2, 0)
        pids = [pid_of(job, process) for process in (0, 1)]
        deadline = time.monotonic() + 60
        # The planning thread does it, soon.
        while len(jobs.of(jobs.living(), str(launcher.pid))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        files = dumped(capsys, "--job", launcher.pid, "-o", tmp_path)
        found = [read(files[process]) for process in (0, 1)]
        assert [(f.pid, f.processes, f.records) for f in found] == [(pid, 2, ()) for pid in pids]
        launcher.send_signal(signal.SIGINT)
        job.wait(60)


BEGUN = [record(1, 10, 0, "call"), record(2, 11, 1, "call", "failed", 300, 303, processes=3)]
JOB = b"127.0.0.1:1"


def compared(*flights):
    found = diff.compare([parse(data) for data in flights])
    return " ".join(found.sentences), found.well


def test_who_is_missing_is_counted():
    two = [flight(process, BEGUN, processes=3, job=JOB) for process in (0, 2)]
    said, well = compared(*two)
    assert not well
    assert said == (
        "There is no record of process 1 (of 3): maybe it has not begun call, execution 1, which others have: "
        "process 0 (pid 7 on h) (failed after 3 s), process 2 (pid 7 on h) (failed after 3 s). A process that was "
        "killed leaves a record only with JAXRING_TRACE_DIR; every host has those of its own processes."
    )
    # The records of an older version do not say how many processes there are: the operation does.
    assert "There is no record of process 1 (of 3)" in compared(flight(0, BEGUN), flight(2, BEGUN))[0]
    # One that is behind does not hide one that is missing.
    said, _ = compared(two[0], flight(2, BEGUN[:1], processes=3))
    assert said.startswith("There is no record of process 1 (of 3)")
    assert "Process 2 (pid 7 on h) is behind" in said
    # It takes no part.
    pair = [record(2, 11, 1, "pair", "running", 300, 0, processes=2)]
    said, _ = compared(flight(0, pair, processes=3), flight(2, pair, processes=3))
    assert "All that take part have begun pair" in said
    assert said.endswith("There is no record of process 1 (of 3), which takes no part in it.")
    assert "is behind" not in compared(flight(0, pair, processes=3), flight(1, BEGUN[:1], processes=3))[0]
    # All ended well, as far as one sees.
    said, well = compared(flight(0, BEGUN[:1], processes=40))
    assert not well
    assert said.startswith("There is no record of processes 1, 2, 3, ")
    assert "and 23 more (of 40): every operation that was begun has ended well." in said
    assert compared(*(flight(process, BEGUN[:1], processes=3) for process in range(3)))[1]


def test_records_of_several_jobs_are_not_compared(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for pid, path in enumerate(paths):
        path.write_bytes(flight(pid, BEGUN, pid=pid, processes=3, job=b"127.0.0.1:%d" % pid))
    assert main(["trace", "diff", *map(str, paths)]) == 1


def living(pid, process=-1, records=(), uid=None, **named):
    data = parse(flight(process, records, pid=pid, **named))
    return jobs.Living(pid, os.geteuid() if uid is None else uid, pathlib.Path(str(pid)), data)


def test_a_dump_takes_one_job_of_this_user_s():
    ours = [living(2**22 + n, n, processes=2, job=JOB) for n in range(2)]
    launcher = living(2**22 + 7)
    foreign = living(2**22 + 8, 0, BEGUN, os.geteuid() + 1, processes=9, job=b"127.0.0.1:2")
    assert jobs.only([launcher, *ours, foreign]) == ours
    assert jobs.of([launcher, *ours, foreign], JOB.decode()) == ours
    assert jobs.of([launcher, *ours, foreign], str(2**22 + 1)) == ours
    assert jobs.of([launcher, *ours, foreign], str(2**22 + 8)) == [foreign]
    alone = living(2**22 + 9, 0, BEGUN)
    assert jobs.only([launcher, alone]) == [alone]
    with pytest.raises(JaxringError, match=r"2 jobs: .* 127\.0\.0\.1:1 \(pids .*\); process \d+ \(pids \d+\)\."):
        jobs.only([launcher, *ours, alone])
    assert main(["trace", "dump", "--job", "1", "2"]) == 1, "which is meant, is not clear"


@contextlib.contextmanager
def holder(key, process):
    """A process whose memory holds what a viewer of a job of that key needs."""
    access = viewing.Access(JOB.decode(), key, {process: (("127.0.0.1", 1 + process),)}).encode()
    script = "import os, sys; os.write(os.memfd_create(sys.argv[1]), sys.stdin.buffer.readline()); print(flush=True)"
    command = [sys.executable, "-c", f"{script}; input()", viewing.MEMORY]
    with starting.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdin.write(access)
        started.stdin.flush()
        started.stdout.readline()
        yield started.pid
        started.kill()


def test_two_jobs_whose_coordinators_have_the_same_address_are_told_apart():
    with contextlib.ExitStack() as stack:
        one, other = (
            [stack.enter_context(holder(key * handshake.SECRET_BYTES, p)) for p in (0, 1)] for key in (b"1", b"2")
        )
        alone = living(2**22 + 3, 2, processes=3, job=JOB)  # it has met nobody yet
        ours, theirs = ([living(pid, p, processes=3, job=JOB) for p, pid in enumerate(pids)] for pids in (one, other))
        assert jobs.of([*ours, alone, *theirs], str(one[1])) == [*ours, alone]
        assert jobs.of([*ours, alone, *theirs], str(other[0])) == [alone, *theirs]
        assert sorted(viewing.shared(one).processes) == [0, 1]
        pids = rf"pids {one[0]}, {one[1]}; pids {other[0]}, {other[1]}\."
        with pytest.raises(JaxringError, match=f"2 jobs have the same coordinator's address, or .*: .* {pids}"):
            viewing.shared([*one, *other])
        for look in (jobs.only, lambda records: jobs.of(records, JOB.decode())):
            with pytest.raises(JaxringError, match=rf"2 jobs are called 127\.0\.0\.1:1: .* --job .*: {pids}"):
                look([*ours, alone, *theirs])
            # One whose key is that of an epoch before, a fork, and one that has no key yet.
            left_out, fork = living(other[1], 2, processes=3, job=JOB), living(one[1], 0, processes=3, job=JOB)
            for several in ([*ours, left_out], [ours[0], fork], [*ours, alone, left_out]):
                assert look(several) == several


# Its arguments: its record, and the access of its first epoch and of its second one, in which its fork has the first.
FORKED = """
import os, sys
record, first, second = map(bytes.fromhex, sys.argv[2:])
os.write(os.memfd_create("jaxring-trace"), record)
access = os.memfd_create(sys.argv[1])
os.write(access, first)
child = os.fork()
if child:
    os.close(access)
    os.write(os.memfd_create(sys.argv[1]), second)
    print(child, flush=True)
sys.stdin.read()
"""


def test_a_fork_of_an_earlier_epoch_is_no_other_job():
    record = flight(0, BEGUN, processes=3, job=JOB)
    keys = [key * handshake.SECRET_BYTES for key in (b"1", b"2")]
    accesses = [viewing.Access(JOB.decode(), key, {0: (("127.0.0.1", 1),)}).encode() for key in keys]
    command = [sys.executable, "-c", FORKED, viewing.MEMORY, *(data.hex() for data in (record, *accesses))]
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(starting.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        fork = int(parent.stdout.readline())
        both = jobs.living([parent.pid, fork])
        assert [record.pid for record in both] == [parent.pid, fork]
        assert jobs.only(both) == jobs.of(both, JOB.decode()) == both
        other = living(stack.enter_context(holder(b"3" * handshake.SECRET_BYTES, 0)), 0, processes=3, job=JOB)
        with pytest.raises(JaxringError, match=rf"2 jobs are called .*: pids {parent.pid}, {fork}; pids {other.pid}\."):
            jobs.only([*both, other])
        parent.communicate()
