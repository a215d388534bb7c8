"""A job of three processes that commit each step, and lose one at each phase of a commit. Run by test_commit.py.

The parameters are whole numbers, to which a step adds an amount of each live rank, so that sums are exact and the test
can compute what they must be. Each process reports each of its votes, and what it has after the decision.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import recovery
from jaxring.runtime import service
from tests.recovery import failing

ME = jax.process_index()
PHASES = ("before", "others wait", "voted", "all voted", "decided")
LIMIT_S = 100.0
MESH = Mesh(np.array(sorted(jax.devices(), key=lambda d: d.process_index)), ("x",))
BY_RANK = NamedSharding(MESH, P("x"))


def compiled(function):
    return jax.jit(jax.shard_map(function, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False))


from_first = compiled(lambda v: jaxring.broadcast(v, "x", root=0))
total = compiled(lambda v: jaxring.all_reduce(v, "x", "sum"))


def run(function, row):
    """The function's result for this process's rank, whose operand is `row`."""
    whole = jax.make_array_from_callback((3, len(row)), BY_RANK, lambda _: np.asarray(row, np.float32)[None])
    (shard,) = jax.block_until_ready(function(whole)).addressable_shards
    return np.asarray(shard.data)[0]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_commit(phase):
    """Has this process killed at that phase of its next commit."""
    store = service.job().store()
    publish = store.set

    def others_vote(key):
        while len(set(store.list(key.rpartition("/")[0] + "/")) - {str(ME)}) < 2:
            time.sleep(0.005)

    def publish_and_die(key, value):
        if "/vote/" in key:
            if phase == "before":
                die()
            if phase == "others wait":
                others_vote(key)
                die()
            publish(key, value)
            if phase == "all voted":
                others_vote(key)
            die()
        publish(key, value)

    store.set = publish_and_die


class Training:
    """`w` after `step` steps that count; the case that is under way."""

    def __init__(self):
        self.w, self.step, self.case = np.zeros(4, np.float32), 0, 0
        self.report = pathlib.Path(sys.argv[1], f"{ME} {os.getpid()}")

    def take_from_first(self):
        state = run(from_first, [*self.w, self.step, self.case])
        self.w, self.step, self.case = state[:4], int(state[4]), int(state[5])

    def advance(self, attempt, ok=True):
        """One step, which may not count. Whether it does."""
        try:
            w = self.w + run(total, (ME + 1) * (np.arange(4) + 1 + self.step))
        except jaxring.recovery.ERRORS:
            ok, w = False, self.w
        members = recovery.members()
        counts = jaxring.commit(ok, LIMIT_S)
        if counts:
            self.w, self.step = w, self.step + 1
        line = {
            "attempt": f"{self.case} {attempt}",
            "epoch": members.epoch,
            "members": members.processes,
            "ok": ok,
            "counts": counts,
            "step": self.step,
            "w": self.w.tolist(),
        }
        with self.report.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        return counts


def lose_one(training, chance, phase):
    """Some steps, of which all refuse one; then a process is killed in that phase of a commit, and comes back."""
    victim, refuser = chance.choice((1, 2)), chance.choice((0, 1, 2))
    assert not training.advance("refused", ok=refuser != ME)
    for n in range(chance.randrange(3)):
        assert training.advance(f"undisturbed {n}")
    if victim == ME:
        if phase != "decided":
            dies_in_commit(phase)
        training.advance(phase)
        die()
    training.advance(phase)
    while training.advance("end"):
        pass
    assert jaxring.shrink(LIMIT_S).lost == (victim,)
    for n in range(2):
        assert training.advance(f"alone {n}")
    while recovery.waiting() != (victim,):
        time.sleep(0.01)
    jaxring.rebuild(LIMIT_S)
    training.case += 1


def main():
    seed = int(sys.argv[2])
    phases = random.Random(seed).sample(PHASES, len(PHASES))
    training = Training()
    if recovery.restarted():
        with pytest.raises(jaxring.JaxringError, match=r"Call jaxring.rebuild\(\) before"):
            jaxring.commit()
        jaxring.rebuild(LIMIT_S)
    while True:
        training.take_from_first()
        if training.case == len(phases):
            break
        lose_one(training, random.Random(f"{seed} {training.case}"), phases[training.case])
    assert training.advance("last")
    # Steps that all have decided on are not kept in the store.
    assert training.advance("last but one")
    assert len(service.job().store().list(f"jaxring/commit/{recovery.members().epoch}/")) <= 8


failing.run(main)
