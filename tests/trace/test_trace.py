"""Flight records: read, compared, viewed, and those of processes that live or were killed."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import struct
import sys
import time

import pytest

from jaxring.cli import main
from jaxring.errors import JaxringError
from jaxring.trace import diff, view
from jaxring.trace.flight import parse, read
from tests.stress.stress_jobs import Job, environment
from tests.trace.trace_records import flight, record

pytestmark = pytest.mark.usefixtures("nothing_left")

BEGUN = [record(1, 10, 0, "all_reduce at a.py:1"), record(2, 11, 1, "all_reduce at a.py:1", "failed", 300, 303)]


def sentences(*flights):
    return " ".join(diff.compare([parse(data) for data in flights]).sentences)


def test_who_is_behind_is_said():
    behind = flight(1, BEGUN[:1])
    said = sentences(flight(0, BEGUN), behind)
    assert said == (
        "Process 1 (pid 7 on h) is behind: it has not begun all_reduce at a.py:1, execution 1, which others have: "
        "process 0 (pid 7 on h) (failed after 3 s). Its last operation was all_reduce at a.py:1, execution 0, done "
        "100 s before the others began."
    )
    elsewhere = flight(1, [BEGUN[0], record(2, 77, 0, "all_gather at b.py:2", "running", 300, 0)])
    assert "It is still in all_gather at b.py:2, execution 0." in sentences(flight(0, BEGUN), elsewhere)
    assert "It has begun no operation at all." in sentences(flight(0, BEGUN), flight(1, []))
    assert "No process is behind" in sentences(behind, behind)
    both = sentences(flight(0, BEGUN), flight(1, BEGUN))
    assert both.startswith("All that take part have begun all_reduce at a.py:1, execution 1: ")
    # A process that takes no part is not blamed.
    apart = [record(1, 5, 0, "of two", "failed", processes=2)]
    assert "is behind" not in sentences(flight(0, apart), flight(1, apart), flight(2, BEGUN[:1]))


def test_json_has_what_the_sentences_say(tmp_path, capsys):
    files = []
    for process, records in enumerate((BEGUN, BEGUN[:1])):
        files.append(tmp_path / str(process))
        files[-1].write_bytes(flight(process, records, processes=3))
    assert main(["trace", "diff", "--json", *map(str, files)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found.pop("sentences") == diff.compare([read(path) for path in files]).sentences
    assert found == {
        "well": False,
        "operation": "all_reduce at a.py:1, execution 1",
        "begun": [{"process": 0, "pid": 7, "host": "h"}],
        "behind": [{"process": 1, "pid": 7, "host": "h"}],
        "missing": 1,
        "stragglers": [],
    }
    files[0].write_bytes(flight(0, BEGUN[:1]))
    files[1].write_bytes(flight(1, BEGUN[:1]))
    assert main(["trace", "diff", "--json", *map(str, files)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["well"], found["operation"], found["begun"], found["missing"]) == (True, "", [], 0)


def test_old_records_and_texts_are_gone():
    many = [record(n, n, n, f"call {n}") for n in range(1, 7)]
    assert [r.number for r in parse(flight(0, many)).records] == [3, 4, 5, 6]
    data = bytearray(flight(0, BEGUN))
    struct.pack_into("<Q", data, 8 + 16 + 24 + 8 + 8, 10_000)  # texts written since
    assert [r.what for r in parse(bytes(data)).records] == ["", ""]


def test_what_is_no_record_is_refused_or_harmless():
    good = flight(0, BEGUN)
    for bad in (b"", good[:50], good[:-1], good + b"\0", b"X" + good[1:]):
        with pytest.raises(ValueError, match=r"."):
            parse(bad)
    generator = random.Random(1)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            data[generator.choice((generator.randrange(200), generator.randrange(4096, len(data))))] = generator.choice(
                (0, 1, 127, 128, 255)
            )
        try:
            found = parse(bytes(data))
        except ValueError:
            continue
        assert len(found.records) <= 4
        diff.compare([found, found])


def test_every_track_of_a_timeline_has_a_name_of_its_own():
    # Two operations at once are on two tracks.
    both = [record(1, 10, 0, "a", launched=100, ended=300), record(2, 11, 0, "b", launched=200, ended=400)]
    found = view.timeline([parse(flight(process, both)) for process in (0, 1)])["traceEvents"]
    names = [event["args"]["name"] for event in found if event["name"] == "thread_name"]
    assert names == [f"operations{n} of process {p}" for p in (0, 1) for n in ("", " 2")]


PROGRAM = """
import signal
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxring
mesh = Mesh(np.array(jax.devices()), ("x",))
f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
for _ in range(3):
    f(np.ones(2, np.float32)).block_until_ready()
print("ran", flush=True)
signal.pause()
"""


def test_records_of_a_living_and_of_a_killed_process(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    kept, asked = tmp_path / "kept", tmp_path / "asked"
    asked.mkdir()
    with Job(tmp_path) as job:
        processes = [
            job.start([sys.executable, str(script)], environment(2, TMPDIR=str(asked))),
            job.start([sys.executable, str(script)], environment(2, JAXRING_TRACE_DIR=str(kept))),
        ]
        for process in range(2):
            job.wait_for_line(process, "ran")
        assert main(["trace", "dump", "-o", str(tmp_path), str(processes[0].pid)]) == 0
        # SIGUSR1 has a process write its record where that is not a file, and kills none.
        for process in processes:
            process.send_signal(signal.SIGUSR1)
        dumped = pathlib.Path(capsys.readouterr().out.strip())
        deadline = time.monotonic() + 60
        while [path.stat().st_size for path in asked.iterdir()] != [dumped.stat().st_size]:
            assert time.monotonic() < deadline, list(asked.iterdir())
            time.sleep(0.01)
        for process in processes:
            assert process.poll() is None
            process.kill()
        assert [result.code for result in job.wait(60)] == [-signal.SIGKILL] * 2
    (signalled,) = asked.iterdir()
    assert read(signalled).records == read(dumped).records
    files = [dumped, *kept.iterdir()]
    assert len(files) == 2
    for path, process in zip(files, processes, strict=True):
        assert path.stat().st_mode & 0o777 == 0o600
        found = read(path)
        assert found.pid == process.pid
        assert [(r.number, r.sequence, r.state) for r in found.records] == [(i + 1, i, "done") for i in range(3)]
        assert all("all_reduce sum of float32[1] over" in r.what and "program.py:7" in r.what for r in found.records)
        assert all(r.arrived <= r.launched <= r.ended for r in found.records)
    assert main(["trace", "diff", *map(str, files)]) == 0
    assert "No process is behind" in capsys.readouterr().out
    out = tmp_path / "out.json"
    assert main(["trace", "view", "-o", str(out), *map(str, files)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 6
    assert {event["args"]["op"] for event in events if event["ph"] == "X"} == {"sum"}
    with pytest.raises(JaxringError, match="is no flight record"):
        read(out)


FAILING = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxring
mesh = Mesh(np.array(jax.devices()), ("x",))
def body(v):
    return jaxring.recv(jax.ShapeDtypeStruct(v.shape, v.dtype), "x", [(0, 1)], tag=7, timeout=1)[0] + v
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
f(np.ones(2, np.float32)).block_until_ready()
"""


def test_a_process_that_ends_by_an_error_leaves_its_record(tmp_path):
    script, left = tmp_path / "program.py", tmp_path / "left"
    script.write_text(FAILING, encoding="utf-8")
    left.mkdir()
    # What other processes have left is bounded; files of other names are nobody's business.
    for number in range(25):
        old = left / f"jaxring-some-host-{number}-0.trace"
        old.touch()
        os.utime(old, ns=(number, number))
    others = {left / "jaxring-some-host-1-1790000000000000000.trace", left / "mine.trace"}
    for path in others:
        path.touch()
    with Job(tmp_path) as job:
        process = job.start([sys.executable, str(script)], environment(2, TMPDIR=str(left)))
        (result,) = job.wait(60)
    assert result.code == 1, str(result)
    # The error says how to look at the record, and the end where it is.
    assert f"`jaxring trace dump {process.pid}` on " in result.err
    assert "JAXRING_TRACE_DIR keeps it" in result.err
    (path,) = left.glob(f"jaxring-*-{process.pid}-0.trace")
    kept = {left / f"jaxring-some-host-{number}-0.trace" for number in range(6, 25)}
    assert set(left.iterdir()) == {path, *kept, *others}
    assert f"jaxring: flight record written to {path}\n" in result.err
    assert path.stat().st_mode & 0o777 == 0o600
    (found,) = read(path).records
    assert found.state == "failed"
    assert "recv" in found.what
