"""Profiles name what jaxring did: in JAX's own events, and in the track that `jaxring.profiler.trace` adds."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import resource
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import profiler
from jaxring.profiler import perfetto
from jaxring.profiler.spans import Span, spans
from jaxring.trace.flight import Record
from tests import starting

X = np.arange(4096, dtype=np.float32)
HERE = pathlib.Path(__file__).parent
TRACK = "/device:CUSTOM:jaxring"
# jaxlib 0.11.2 ends the process where Python's warning about its types is made an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")
NAMES = {"jaxring_all_reduce_max_2048B_over_x", "jaxring_all_gather_1024B_over_x_y"}


@pytest.fixture
def program():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

    def f(x):
        y = jaxring.all_reduce(x, "x", "max", algorithm="ring", protocol="simple")
        return y + jaxring.all_gather(x[::2], ("x", "y"), tiled=True).sum()

    run = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(("x", "y")), check_vma=False))
    run(X).block_until_ready()
    return run


def events(folder):
    """{plane: [(name, start ns, end ns, stats)]} of a profile."""
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    found = {}
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                end = event.start_ns + event.duration_ns
                found.setdefault(plane.name, []).append((event.name, event.start_ns, end, dict(event.stats)))
    return found


def _clean():
    """The environment of a job of its own: none of this process's settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("JAXRING_", "JAX_", "XLA_", "PJRT_"))}


def calls(found):
    """The host's events of our custom calls, by name without XLA's number."""
    result = {}
    for name, start, end, _ in found["/host:CPU"]:
        if name.startswith("jaxring_"):
            result.setdefault(name.split(".")[0], []).append((start, end))
    return result


def test_jax_s_own_profile_shows_op_bytes_and_axes(tmp_path, program):
    with jax.profiler.trace(tmp_path):
        program(X).block_until_ready()
    found = calls(events(tmp_path))
    for name in NAMES:
        assert len(found[name]) == 8, found


def test_our_profile_has_a_track_of_operations(tmp_path, program):
    with jaxring.profiler.trace(tmp_path, create_perfetto_trace=True):
        for _ in range(3):
            program(X).block_until_ready()
    found = events(tmp_path)
    track = found[TRACK]
    # One reduction for each of y's two positions, and one gather, in each of three launches.
    reduces = [event for event in track if event[0] == "all_reduce max 2048 B over 'x': ring/simple"]
    gathers = [event for event in track if event[0].startswith("all_gather 1024 B over ('x', 'y'): ")]
    assert (len(reduces), len(gathers), len(track)) == (6, 3, 9)
    stats = reduces[0][3]
    expected = {"op": "max", "bytes": 2048, "axes": "'x'", "algorithm": "ring", "protocol": "simple", "ranks": 4}
    assert {key: stats[key] for key in expected} == expected
    assert stats["state"] == "done"
    assert stats["site"].startswith("test_trace.py:")
    executions = sorted(event[3]["execution"] for event in gathers)
    # Those of equal calls of other programs count, too.
    assert executions == list(range(executions[0], executions[0] + 3))
    # On JAX's clock, to a millisecond: not launched before the first device was there, nor all before the last was.
    there = sorted(calls(found)["jaxring_all_gather_1024B_over_x_y"])
    gathers.sort(key=lambda event: event[1])
    for i, (_, start, end, _) in enumerate(gathers):
        assert there[8 * i][0] - 1e6 <= start <= end
        if i + 1 < len(gathers):
            assert end <= there[8 * (i + 1) + 7][1] + 1e6
    for kind in ("perfetto_trace", "*.trace"):
        (path,) = tmp_path.glob(f"plugins/profile/*/{kind}.json.gz")
        with gzip.open(path, "rt") as file:
            listed = json.load(file)["traceEvents"]
        (pid,) = [e["pid"] for e in listed if e["name"] == "process_name" and e["args"]["name"] == "jaxring"]
        ours = [e for e in listed if e["ph"] == "X" and e["pid"] == pid]
        assert sorted(e["name"] for e in ours) == sorted(event[0] for event in track)
        assert {e["args"]["algorithm"] for e in ours if e["name"].startswith("all_reduce")} == {"ring"}


def test_a_profile_shows_where_the_compiler_s_collectives_come_from(tmp_path):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, NamedSharding(mesh, P("x")))
    total = jax.jit(lambda x: x.reshape(8, -1).max(0))
    line = test_a_profile_shows_where_the_compiler_s_collectives_come_from.__code__.co_firstlineno + 3
    with jaxring.installed(whole_program=True):
        total(x).block_until_ready()
        with jaxring.profiler.trace(tmp_path):
            total(x).block_until_ready()
    found = events(tmp_path)
    (event,) = found[TRACK]
    assert event[0].startswith("all_reduce max 2048 B over 8 of 8 devices: ")
    assert event[3]["site"] == f"test_trace.py:{line} (jit(<lambda>)/reduce_max)"
    assert len(calls(found)["jaxring_all_reduce_max_2048B_over_8_of_8"]) == 8


@pytest.mark.slow
def test_more_operations_than_the_engine_remembers(tmp_path):
    mesh = Mesh(jax.devices()[:2], ("r",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
    def run(x):
        return jax.lax.fori_loop(0, 1000, lambda _, x: jaxring.all_reduce(x, "r", "max"), x)

    x = jnp.ones(2)
    run(x).block_until_ready()
    with jaxring.profiler.trace(tmp_path):
        for _ in range(6):
            run(x).block_until_ready()
            time.sleep(0.2)  # they are fetched by a thread, which a busy machine may keep waiting
    track = events(tmp_path)[TRACK]
    assert sorted(event[3]["execution"] for event in track) == list(range(1000, 7000))


def test_nothing_is_added_without_operations(tmp_path):
    with jaxring.profiler.trace(tmp_path):
        jnp.ones(3).block_until_ready()
    assert TRACK not in events(tmp_path)


def test_processes_of_a_host_have_a_folder_each(tmp_path):
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", str(HERE / "profiled_job.py"), str(tmp_path)]
    done = starting.run(command, env=_clean(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    for process in range(3):
        folder = tmp_path / f"process_{process}"
        found = events(folder)  # JAX's own file is whole, too: its events are in it
        assert len(calls(found)["jaxring_all_reduce_sum_4B_over_x"]) == 20
        assert [event[3]["execution"] for event in found[TRACK]] == list(range(1, 21))
        for kind in ("perfetto_trace", "*.trace"):
            (path,) = folder.glob(f"plugins/profile/*/{kind}.json.gz")
            listed = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            assert sum(event.get("args", {}).get("collective") == "all_reduce" for event in listed) == 20


def test_a_profile_that_cannot_be_extended_is_a_warning(tmp_path, program, monkeypatch, caplog):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(perfetto.json, "dump", full)
    with jaxring.profiler.trace(tmp_path):
        program(X).block_until_ready()
    assert "is not complete: OSError: No space left on device" in caplog.text
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    assert len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) > 8
    assert set(calls(events(tmp_path))) >= NAMES
    assert not list(tmp_path.rglob(".*")), "what was written in vain is gone"


def test_what_the_block_raises_comes_out_of_it(tmp_path, program, monkeypatch, caplog):
    monkeypatch.setattr(profiler.xplane, "start_time_ns", lambda _: 1 / 0)
    with pytest.raises(KeyError, match="mine"), jaxring.profiler.trace(tmp_path):
        raise KeyError("mine" if program(X).block_until_ready() is not None else "")
    assert "is not complete: ZeroDivisionError" in caplog.text


def test_a_plane_is_added_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            profiler.xplane.append(path, [Span("name", 0, 1, 0, {})])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert path.read_bytes() == b"before"


def test_overlapping_operations_are_on_lines_of_their_own():
    label = json.dumps({"collective": "barrier", "op": None, "nbytes": 4, "axes": "'r'", "transports": ["memory"]})
    plan = dict.fromkeys(("dtype", "site", "algorithm", "protocol"), "?")
    plan |= dict.fromkeys(("ranks", "processes", "channels"), 1)
    label = json.dumps(json.loads(label) | plan)
    records = [
        Record(1, 0, 0, "", label, 0, 10_000, 30_000, "done"),
        Record(2, 5, 0, "", label, 15_000, 20_000, 40_000, "failed"),
        Record(3, 1, 0, "", label, 30_000, 30_000, 0, "running"),
        Record(4, 0, 0, "", "", 41_000, 41_000, 42_000, "done"),
    ]
    found = spans(records, now_ns=50_000)
    assert [(s.begin_ns, s.end_ns, s.line) for s in found] == [
        (10_000, 30_000, 0),
        (20_000, 40_000, 1),
        (30_000, 50_000, 0),
        (41_000, 42_000, 1),
    ]
    assert [s.arguments["state"] for s in found] == ["done", "failed", "running", "done"]
    assert found[0].arguments["waited_us"] == 10
    assert found[0].name == "barrier 4 B over 'r': ?/?"
