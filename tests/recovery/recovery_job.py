"""A job of three processes that are aborted, killed, started again and killed again. Run by test_recovery.py.

Each phase ends with everybody back; then process 0 tells which is next, also to those that were started meanwhile.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import recovery
from tests.recovery import failing
from tests.recovery.held import held, soon

ME = jax.process_index()
DEVICES = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
N = len(DEVICES)
LIMIT_S = 100.0


class Ranks:
    """Calls over the devices of a mesh; rank r's part of an operand is `v + r`."""

    def __init__(self, devices):
        self.devices = devices
        self.mesh = Mesh(np.array(devices), ("x",))
        self.calls = {}

    def run(self, name, v=0.0, **options):
        """This process's parts of the result of jaxring.NAME: rank -> array."""
        key = (name, str(options))
        if key not in self.calls:

            def body(x):
                return getattr(jaxring, name)(x, "x", **options)

            shard_map = jax.shard_map(body, mesh=self.mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
            self.calls[key] = jax.jit(shard_map)
        by_rank = NamedSharding(self.mesh, P("x"))
        x = jax.make_array_from_callback(
            (len(self.devices), 5), by_rank, lambda i: np.full((1, 5), v + i[0].start, np.float32)
        )
        y = self.calls[key](x)
        return {self.devices.index(s.device): np.asarray(s.data) for s in y.addressable_shards}


def total(ranks, v=0.0):
    return sum(v + r for r in ranks)


def ranks_of(processes):
    return [r for r, d in enumerate(DEVICES) if d.process_index in processes]


everybody = Ranks(DEVICES)


def check(processes):
    """Collectives among the ranks of these processes, by programs over all."""
    live = ranks_of(processes)
    for v in (1.0, 8.0):
        for name, op, expected in (
            ("all_reduce", "sum", total(live, v)),
            ("all_reduce", "mean", total(live, v) / len(live)),
            ("all_reduce", "max", v + max(live)),
        ):
            for rank, part in everybody.run(name, v, op=op).items():
                assert np.all(part == np.float32(expected)), (name, op, rank, part, expected)
    for part in everybody.run("broadcast", 3.0, root=live[0]).values():
        assert np.all(part == 3.0 + live[0]), part
    for rank, part in everybody.run("reduce", 3.0, root=live[-1]).items():
        assert rank != live[-1] or np.all(part == total(live, 3.0)), part
    if len(processes) == 3:
        for part in everybody.run("all_gather", 2.0).values():
            assert np.array_equal(part.reshape(N, -1)[:, 0], np.arange(N) + 2.0), part


def expect(text, act):
    """`act`, again and again, fails within a minute with an error that says `text`."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        try:
            act()
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if text not in str(error):
                raise
            return str(error)
    raise AssertionError(f"no error says {text!r}")


def all_are_past(name):
    """Returns when every process has come here: no collective of before is in flight then."""
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir(exist_ok=True)
    (folder / str(ME)).touch()
    began = time.monotonic()
    while len(list(folder.iterdir())) < 3:
        assert time.monotonic() - began < LIMIT_S
        time.sleep(0.01)


def abort_is_seen_by_all():
    all_are_past("abort")
    if ME == 1:
        jaxring.abort("the loss is NaN")
        expect("ABORTED", lambda: everybody.run("all_reduce", op="sum"))
    else:
        # These wait inside for process 1, which does not come.
        expect("process 1 called jaxring.abort(): the loss is NaN", lambda: everybody.run("all_reduce", op="sum"))
    assert "loss is NaN" in recovery.halted()
    expect("jaxring.rebuild()", lambda: everybody.run("all_reduce", op="sum"))
    assert jaxring.rebuild(LIMIT_S) == recovery.Membership(1, 3, (0, 1, 2))
    assert recovery.halted() is None


def survivors_shrink():
    all_are_past("one kill")
    if ME == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    text = expect("", lambda: everybody.run("all_reduce", op="sum"))
    assert "process 2" in text or "ABORTED" in text, text
    host = jaxring.Communicator()  # knows nothing of the loss
    members = jaxring.shrink(LIMIT_S)
    assert (members.processes, members.lost) == ((0, 1), (2,))
    assert recovery.members() == members
    check({0, 1})
    mean = host.all_reduce(np.full(4, float(ME), np.float32), op="mean")
    assert np.all(mean == 0.5), mean
    # Groups without lost ranks are as they were; one of which no rank lives is nobody's.
    pairs = [[2 * p, 2 * p + 1] for p in range(3)]
    for rank, part in everybody.run("all_reduce", 1.0, op="sum", axis_index_groups=pairs).items():
        assert np.all(part == total(pairs[rank // 2], 1.0)), part
    lost = f"rank {N - 1} (process 2)"
    for name, options in (
        ("all_gather", {}),
        ("broadcast", {"root": N - 1}),
        ("reduce", {"root": N - 1}),
        ("permute", {"perm": [(0, 1)]}),
    ):
        text = expect("cannot do without", lambda n=name, o=options: everybody.run(n, **o))
        assert lost in text, text
        assert "recovery_job.py" in text, text
    # Over a mesh of their own the survivors can do everything.
    few = Ranks([d for d in DEVICES if d.process_index in members.processes])
    for part in few.run("all_gather", 2.0).values():
        assert np.array_equal(part.reshape(len(few.devices), -1)[:, 0], np.arange(len(few.devices)) + 2.0), part
    come_back({2})


def suspended_links_take_no_memory():
    before = recovery.members()
    assert jaxring.counters()["link_bytes"] > 0
    for _ in range(2):
        jaxring.suspend(LIMIT_S)
        assert jaxring.counters()["link_bytes"] == 0
        assert not recovery.restarted()
        expect("called jaxring.suspend(). Go on with jaxring.resume()", lambda: everybody.run("all_reduce", op="sum"))
        jaxring.resume(LIMIT_S)
        check({0, 1, 2})
    assert recovery.members() == recovery.Membership(before.epoch + 2, 3, before.processes)
    assert jaxring.counters()["link_bytes"] > 0
    # After a suspension the job can also be formed anew.
    jaxring.suspend(LIMIT_S)
    jaxring.rebuild(LIMIT_S)


def come_back(lost):
    while set(recovery.waiting()) != lost:
        time.sleep(0.01)
    members = jaxring.rebuild(LIMIT_S)
    assert members.processes == (0, 1, 2)
    assert members.lost == ()


def two_at_once():
    all_are_past("two kills")
    if ME in (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    expect("", lambda: everybody.run("all_reduce", op="sum"))
    assert jaxring.shrink(LIMIT_S).processes == (0,)
    assert not recovery.restarted()
    assert jaxring.commit(True, LIMIT_S)
    check({0})
    come_back({1, 2})


def nothing_is_left_after_five_rebuilds():
    check({0, 1, 2})
    before = held()
    for _ in range(5):
        jaxring.rebuild(LIMIT_S)
        check({0, 1, 2})
    soon(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), lambda: (before, held()))


PHASES = (
    abort_is_seen_by_all,
    survivors_shrink,
    two_at_once,
    nothing_is_left_after_five_rebuilds,
    suspended_links_take_no_memory,
)


def main():
    phase = 0
    if recovery.restarted():
        assert "before the first collective" in expect("", lambda: everybody.run("all_reduce", op="sum"))
        jaxring.rebuild(LIMIT_S)
        phase = None
    while True:
        phase = int(everybody.run("broadcast", -1.0 if phase is None else phase, root=0)[2 * ME][0, 0])
        if phase == len(PHASES):
            break
        check({0, 1, 2})
        PHASES[phase]()
        phase += 1
    check({0, 1, 2})
    pathlib.Path(sys.argv[1], f"done {ME}").touch()


failing.run(main)
