"""A process of the job that a seed's plan changes: `elastic_worker.py SEED NAME COORDINATOR...`, one for each job.

All processes sum gradients of whole numbers, so that the weights have the same bits with any members. Float sums,
whose bits depend on who takes part, follow at the end. `elastic_worker.py reference SIZE COORDINATOR NUMBER` gives
those of a job that has had its members from the start. Run by elastic.py.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import sys
import threading
import time
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import recovery
from tests.recovery import elastic_plan

LIMIT_S, SHRINK_S = (s * float(os.environ.get("TEST_PATIENCE", "1")) for s in (120.0, 30.0))
BIG = 300_000


def log(text: str) -> None:
    print(f"{time.time():.3f} {text}", flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def compiled(function: Any, mesh: Mesh) -> Any:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))


class Programs:
    """What the devices of one job of jax.distributed run; lost ones, too, are in its mesh."""

    def __init__(self) -> None:
        self.devices = sorted(jax.devices(), key=lambda each: (each.process_index, each.id))
        self.mesh = Mesh(np.array(self.devices), ("x",))

        def step(part, big):
            largest = jaxring.all_reduce(big[:, :9], "x", "max")
            return jaxring.all_reduce(part, "x"), jaxring.all_reduce(big, "x"), largest

        def settle(state, doomed):
            return jaxring.broadcast(state, "x", root=0), jaxring.all_reduce(doomed, "x")

        self.step, self.settle = compiled(step, self.mesh), compiled(settle, self.mesh)

    def operand(self, parts: dict[Any, np.ndarray]) -> jax.Array:
        """Each of this process's devices has its part."""
        one = next(iter(parts.values()))
        shape, spec = (len(self.devices), *one.shape), NamedSharding(self.mesh, P("x"))
        shards = [jax.device_put(part[None], device) for device, part in parts.items()]
        return jax.make_array_from_single_device_arrays(shape, spec, shards)


def own(result: jax.Array) -> list[np.ndarray]:
    """This process's parts of a result."""
    return [np.asarray(shard.data)[0] for shard in jax.block_until_ready(result).addressable_shards]


def alike(values: list[np.ndarray], expected: Any, what: str) -> None:
    for value in values:
        if not np.array_equal(value, np.broadcast_to(expected, value.shape)):
            raise AssertionError(f"{what}: {value} in place of {expected}")


def last_bits(devices: list[Any]) -> str:
    """A digest of what collectives over these devices give this process, by its place among them."""
    n, mesh = len(devices), Mesh(np.array(devices), ("x",))
    spec = NamedSharding(mesh, P("x"))
    digest = hashlib.sha256()
    for width in (7, 1_000, BIG):

        def body(x):
            return (
                jaxring.all_reduce(x, "x"),
                jaxring.all_reduce(x, "x", op="mean"),
                jaxring.reduce_scatter(jax.numpy.concatenate([x] * n), "x"),
                jaxring.all_gather(x[:, :1000], "x"),
            )

        def part(index, width=width):
            return np.random.default_rng(index[0].start or 0).standard_normal((1, width)).astype(np.float32)

        for result in compiled(body, mesh)(jax.make_array_from_callback((n, width), spec, part)):
            for shard in sorted(
                jax.block_until_ready(result).addressable_shards, key=lambda s: devices.index(s.device)
            ):
                digest.update(np.asarray(shard.data).tobytes())
    return digest.hexdigest()


class Member:
    """A start of a process. It follows the plan, and what JAX and jaxring tell it, and nothing else."""

    def __init__(self, plan: elastic_plan.Plan, start: elastic_plan.Start, coordinators: list[str]) -> None:
        self.plan, self.start, self.coordinators = plan, start, coordinators
        self.job, self.round, self.step = start.job, start.begin, 0
        self.w = np.zeros(elastic_plan.WIDTH, np.int32)
        # Whether somebody has yet to be killed in this round, as far as is known.
        self.pending, self.armed = False, False
        self.left = False
        self.x = elastic_plan.rows()

    def begin(self) -> None:
        start = self.start
        self.watch_the_way_to_another_job()
        recovery.jax.distributed.initialize(
            self.coordinators[start.job], start.size, start.number, initialization_timeout=int(LIMIT_S)
        )
        self.programs = Programs()
        if start.begin < 0:
            self.round = 0
            return
        while True:
            try:
                log(f"joined: {jaxring.rebuild(LIMIT_S)}")
                break
            except jaxring.JoinError as error:
                log(f"not joined: {error}")
        self.settle()

    def watch_the_way_to_another_job(self) -> None:
        leave, initialize = recovery._compat.leave_distributed, jax.distributed.initialize

        def leave_and_note():
            self.doomed_at("leave")
            leave()
            self.left = True

        def initialise(*arguments, **options):
            self.doomed_at("initialise")
            initialize(*arguments, **options)
            self.doomed_at("rebuild")

        recovery._compat.leave_distributed = leave_and_note
        jax.distributed.initialize = initialise

    def doomed(self) -> bool:
        """Whether this process is to be killed, or to leave, in the round that is under way."""
        if self.start.dies != self.round or self.round < 0:
            return False
        return self.start.begin == self.round or self.step >= self.plan.rounds[self.round].step

    def somebody_dies(self) -> bool:
        """Whether the plan has a process killed, or leave, at this step."""
        rounds = self.plan.rounds
        if self.round == len(rounds) or self.step < rounds[self.round].step:
            return False
        return any(start.dies == self.round for start in self.plan.starts)

    def doomed_at(self, moment: str) -> None:
        """Has this process killed if it is to die here."""
        if self.armed:
            self.wait_for_the_end()
        if not self.doomed() or self.start.moment != moment:
            return
        log(f"dies at {moment!r}")
        if moment in ("before", "leave"):
            die()
        timer = threading.Timer(self.start.delay_s, die)
        timer.daemon = True
        timer.start()
        self.armed = True

    def wait_for_the_end(self) -> NoReturn:
        time.sleep(LIMIT_S)
        raise AssertionError("it was to be killed")

    def shrink(self) -> None:
        for _ in range(10):
            self.doomed_at("shrink")
            try:
                log(f"shrunk: {jaxring.shrink(SHRINK_S)}")
                return
            except jaxring.JoinError as error:
                log(f"not shrunk: {error}")
        raise AssertionError("the job cannot be shrunk")

    def settle(self) -> None:
        """All get the state of process 0, and learn whether somebody has yet to be killed in its round."""
        while True:
            self.doomed_at("settle")
            state = np.array([self.step, self.round, *self.w], np.int32)
            mine = [d for d in self.programs.devices if d.process_index == jax.process_index()]
            try:
                states, doomed = self.programs.settle(
                    self.programs.operand(dict.fromkeys(mine, state)),
                    self.programs.operand(dict.fromkeys(mine, np.array([self.doomed()], np.int32))),
                )
                told, count = own(states)[0], own(doomed)[0]
                ok = True
            except jaxring.recovery.ERRORS as error:
                log(f"not settled: {str(error)[:300]}")
                ok = False
            if jaxring.commit(ok, LIMIT_S):
                self.step, self.round, self.w = int(told[0]), int(told[1]), told[2:]
                self.pending = bool(count[0])
                log(f"settled at step {self.step} in round {self.round}, pending: {self.pending}")
                return
            self.shrink()

    def grow(self, round_: elastic_plan.Round) -> None:
        self.doomed_at("before")
        self.left = False
        try:
            found = jaxring.rebuild(LIMIT_S, size=round_.size, coordinator=self.coordinators[round_.job])
            log(f"grown: {found}, process {jax.process_index()}")
        except jaxring.JoinError as error:
            log(f"not grown: {error}")
            if not self.left:
                self.shrink()
                return
            self.shrink()
        self.job, self.programs = round_.job, Programs()
        Beside.epoch = (-1, -1)  # the next job's are counted anew, so its first one may look like the last one
        self.settle()

    def come_back(self, round_: elastic_plan.Round) -> None:
        missing = set(round_.numbers) - set(recovery.members().processes)
        deadline = time.monotonic() + LIMIT_S
        while not missing <= set(recovery.waiting()):
            assert time.monotonic() < deadline, f"{missing} do not come back: {recovery.waiting()} wait"
            time.sleep(0.02)
        self.rebuild()

    def rebuild(self) -> None:
        self.doomed_at("before")
        self.doomed_at("rebuild")
        try:
            log(f"rebuilt: {jaxring.rebuild(LIMIT_S)}")
        except jaxring.JoinError as error:
            log(f"not rebuilt: {error}")
            self.shrink()
        self.settle()

    def attempt(self) -> None:
        """A step, which counts in all processes or in none."""
        members = recovery.members()
        devices = self.programs.devices
        live = [device for device in devices if device.process_index in members.processes]
        parts, bigs = {}, {}
        for index, device in enumerate(live):
            if device.process_index == jax.process_index():
                parts[device] = elastic_plan.gradient(self.x[index :: len(live)], self.w)
                bigs[device] = np.full(BIG, 1 + index, np.float32)
        self.doomed_at("step")
        beside = Beside(members, self.step)
        try:
            beside.start()
            results = self.programs.step(self.programs.operand(parts), self.programs.operand(bigs))
            total, big, most = map(own, results)
            ok = True
        except jaxring.recovery.ERRORS as error:
            log(f"step {self.step} fails: {str(error)[:300]}")
            ok = False
        ok &= beside.ended_well()
        assert self.somebody_dies() or not beside.error, f"communicator fails though nobody dies: {beside.error}"
        if ok:
            n = len(live)
            alike(big, n * (n + 1) / 2, "sum")
            alike(most, n, "maximum")
            alike(total, total[0], "gradient")
        if jaxring.commit(ok, LIMIT_S):
            self.step, self.w = self.step + 1, elastic_plan.update(self.w, total[0])
            log(f"step {self.step}")
        else:
            self.shrink()

    def run(self) -> None:
        """Through all rounds, to the last step."""
        rounds = self.plan.rounds
        while self.round < len(rounds) or self.step < self.plan.last_step:
            if self.round == len(rounds) or self.step < rounds[self.round].step:
                self.attempt()
                continue
            round_, members = rounds[self.round], recovery.members().processes
            if round_.kind == "lose":
                self.lose(round_, members)
            elif self.job != round_.job:
                log(f"round {self.round}")
                self.grow(round_)
            elif members != round_.numbers:
                log(f"round {self.round}")
                self.come_back(round_)
            elif self.pending:
                self.attempt()
            else:
                self.round += 1

    def lose(self, round_: elastic_plan.Round, members: tuple[int, ...]) -> None:
        if members == round_.numbers:
            self.round += 1
            return
        log(f"round {self.round}")
        if self.doomed() and self.start.moment == "leave":
            log("leaves")
            sys.exit(0)
        self.doomed_at("before")
        if self.doomed() and self.start.moment == "shrink":
            self.shrink()
        self.attempt()


class Beside(threading.Thread):
    """Collectives of a communicator while a step runs."""

    comm: Any = None
    epoch: tuple[int, int] = (-1, -1)

    def __init__(self, members: Any, step: int) -> None:
        super().__init__(daemon=True)
        self.error = ""
        self.members = members
        self.step = step
        now = (members.epoch, members.count)
        if Beside.epoch != now:
            Beside.comm, Beside.epoch = jaxring.Communicator(), now

    def run(self) -> None:
        processes = self.members.processes
        try:
            for width in (1, 5_000, 200_000):
                x = np.full(width, self.step + jax.process_index(), np.int64)
                alike([self.comm.all_reduce(x)], self.step * len(processes) + sum(processes), "communicator")
        except jaxring.recovery.ERRORS as error:
            self.error = str(error)[:300]
        except AssertionError as error:
            log(f"WRONG: {error}")
            os._exit(3)

    def ended_well(self) -> bool:
        self.join()
        if self.error:
            log(f"communicator fails: {self.error}")
        return not self.error


def main() -> None:
    if sys.argv[1] == "reference":
        jax.distributed.initialize(sys.argv[3], int(sys.argv[2]), int(sys.argv[4]))
        devices = sorted(jax.devices(), key=lambda each: (each.process_index, each.id))
        place, w, step = jax.process_index(), "", 0
    else:
        plan = elastic_plan.Plan(int(sys.argv[1]))
        member = Member(plan, plan.starts[int(sys.argv[2])], sys.argv[3:])
        member.begin()
        member.run()
        members = recovery.members().processes
        devices = [device for device in member.programs.devices if device.process_index in members]
        place, w, step = members.index(jax.process_index()), member.w.tobytes().hex(), member.step
    print(f"end {place} {step} {w or '-'} {last_bits(devices)}", flush=True)
    # The coordinator is in process 0, whose end would be the others' before theirs.
    until = time.monotonic() + LIMIT_S
    while place == 0 and not pathlib.Path(os.environ["TEST_OTHERS_HAVE_ENDED"]).exists():
        assert time.monotonic() < until
        time.sleep(0.02)


if __name__ == "__main__":
    main()
