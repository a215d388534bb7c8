"""Train on while a process is killed, without it, with it again once it is back, and with one more.

    jaxring run -n 3 --restart 1 examples/recover_lm.py

Every step trains on the same rows, which the living processes divide among them. After a quarter of the steps the last
process kills itself. The step fails in the others: it counts in none of them, they shrink the job and do it again. When
the launcher has started the lost process again they rebuild the job with it; at the half they wait for it. After three
quarters process 0 starts a fourth process, as a scheduler would that has found room, and the job grows by it. Who comes
gets the state from process 0, over one link, by a program that only these two run. Then the same is trained once more,
undisturbed. The last losses differ by rounding only, since the rows were added up in another order meanwhile. The first
loss is compared with one device's.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import recovery
from lm import model, report
from lm.data import Corpus
from lm.train import AXIS, Settings, mean_by_jaxring, train_step

# Relative, of the last loss: rows are added up in another order while a process is away, and AdamW amplifies that.
TOLERANCE = 1e-4


class Programs:
    """What is compiled, once: processes that come back compile the same, and so meet the others' collectives."""

    def __init__(self, settings: Settings) -> None:
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.by_device, self.everywhere = NamedSharding(self.mesh, P(AXIS)), NamedSharding(self.mesh, P())
        step = partial(train_step, settings, mean_by_jaxring)
        self.step = self._compiled(step, (P(), P(AXIS)), (P(), P()))
        self.least = self._compiled(lambda x: jaxring.all_reduce(x[0], AXIS, op="min"), P(AXIS), P())
        # Only the processes of its two devices run this one.
        self.ends = Mesh(self.mesh.devices[[0, -1]], (AXIS,))
        self.to_last = self._compiled(lambda tree: jaxring.broadcast(tree, AXIS, root=0), P(), P(), self.ends)

    def _compiled(self, function: Any, in_specs: Any, out_specs: Any, mesh: Mesh | None = None) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh or self.mesh, in_specs=in_specs, out_specs=out_specs))

    def replicated(self, tree: Any, mesh: Mesh) -> Any:
        """The tree's values on every device of a mesh; each process gives its own."""
        sharding = NamedSharding(mesh, P())

        def place(leaf: Any) -> jax.Array:
            # Of an array that others have parts of, too, a process can read its own.
            here = np.asarray(leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf)
            return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])

        return jax.tree.map(place, tree)

    def agree(self, value: int) -> int:
        """The least of what the members say."""
        each = jax.make_array_from_callback((self.mesh.size,), self.by_device, lambda _: np.array([value], np.int32))
        return int(self.least(each))


class Training:
    """A run of the model that can lose processes: `losses` by step, `state` after the first `done` steps."""

    def __init__(self, programs: Programs, settings: Settings, corpus: Corpus, rows: int) -> None:
        self.programs, self.settings, self.corpus, self.rows = programs, settings, corpus, rows
        init = partial(model.init_state, settings.config, settings.seed)
        self.state = jax.jit(init, out_shardings=programs.everywhere)()
        self.done = 0
        self.losses: dict[int, float] = {}
        self.changes = 0

    def batch(self, step: int) -> jax.Array:
        """The step's rows, shared out evenly among the devices of the members. Lost devices have none."""
        mesh, members = self.programs.mesh, recovery.members().processes
        live = [i for i, device in enumerate(mesh.devices) if device.process_index in members]
        text = self.corpus.batch(step, seed=self.settings.seed, rows=self.rows, length=self.settings.config.context)
        each = self.rows // len(live)
        parts = {device: text[n * each : (n + 1) * each] for n, device in enumerate(live)}
        shape = (each * mesh.size, text.shape[1])
        by_device = self.programs.by_device
        return jax.make_array_from_callback(shape, by_device, lambda index: parts[index[0].start // each])

    def advance(self) -> bool:
        """One step. Whether it counts, which is the same in all processes."""
        step, ok = self.done, True
        try:
            state, loss = jax.block_until_ready(self.programs.step(self.state, self.batch(step)))
        except recovery.ERRORS as error:
            print(f"process {jax.process_index()}, step {step}: {str(error)[:200]} ...", flush=True)
            ok = False
        if not jaxring.commit(ok):
            return False
        self.state, self.done, self.losses[step] = state, step + 1, float(loss)
        return True

    def hand_over(self) -> None:
        """The last process gets the step and the state of process 0, which was never lost."""
        mesh = self.programs.ends
        if jax.process_index() not in {device.process_index for device in mesh.devices}:
            return
        step, state = self.programs.to_last(self.programs.replicated((np.int32(self.done), self.state), mesh))
        self.done = int(step)
        self.state = self.programs.replicated(state, self.programs.mesh)

    def move(self, programs: Programs) -> None:
        """Goes on in another job: arrays of the former one can be read, and no more."""
        self.programs, self.state = programs, programs.replicated(self.state, programs.mesh)


def say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)


def changed(training: Training, text: str) -> None:
    training.changes += 1
    say(f"epoch {recovery.members().epoch}: processes {recovery.members().processes} {text}")


def train(training: Training, until: int) -> None:
    """Up to that step, with all that live."""
    while training.done < until:
        if training.advance():
            say(f"step {training.done:>4}, loss {training.losses[training.done - 1]:.4f}")
            continue
        before = recovery.members().processes
        jaxring.shrink()
        changed(training, "go on")
        if recovery.members().processes == before:
            sys.exit("FAILED: a step fails though no process is lost")


def lose_one(training: Training, kill_at: int, wait_at: int) -> None:
    """The last process is killed when it comes to `kill_at`, and the others go on without it until `wait_at`."""
    train(training, kill_at)
    if jax.process_index() == jax.process_count() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # All must see at the same step that it is back.
    while not (recovery.members().lost and training.programs.agree(len(recovery.waiting()))):
        if training.done < wait_at or not recovery.members().lost:
            train(training, training.done + 1)
        else:
            time.sleep(0.05)
    jaxring.rebuild()
    changed(training, "are all back")


def begins_as_alone(training: Training) -> bool:
    """Whether the first loss is that of one device, without jaxring."""
    config, seed = training.settings.config, training.settings.seed
    text = training.corpus.batch(0, seed=seed, rows=training.rows, length=config.context)
    alone = float(jax.jit(model.loss)(model.init_state(config, seed).params, text))
    right = report.relative_difference(training.losses[0], alone) <= TOLERANCE
    if not right:
        say(f"FAILED: the first loss is {training.losses[0]:.6f}, and {alone:.6f} on one device")
    return right


def grow(training: Training, stack: contextlib.ExitStack) -> subprocess.Popen[bytes] | None:
    """The job goes on with one more process, which process 0 starts and returns. It does not outlive the stack."""
    started, size = None, jax.process_count() + 1
    # The port stays bound, but not listened on, so that nobody else is given it. The coordination service shares it.
    with socket.socket() as reserved:
        port = 1 << 16
        if jax.process_index() == 0:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
        coordinator = f"127.0.0.1:{training.programs.agree(port)}"
        if jax.process_index() == 0:
            command = [sys.executable, *sys.argv, "--join", coordinator, "--size", str(size)]
            started = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(started.kill)  # has no effect on one that has ended
        jaxring.rebuild(size=size, coordinator=coordinator)
    training.move(Programs(training.settings))
    changed(training, "make a larger job")
    return started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--rows", type=int, default=12, help="of a batch; divisible by whatever number of devices lives"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        return run(args, stack)


def run(args: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    """The exit status. What it starts ends with the stack."""
    settings = Settings(args.steps, config=model.Config(width=args.width, layers=args.layers))
    corpus = Corpus(limit_bytes=4 << 20)
    if args.join:
        jax.distributed.initialize(args.join, args.size, args.size - 1)
        jaxring.rebuild()
    training = Training(Programs(settings), settings, corpus, args.rows)
    started = None
    if not args.join:
        if recovery.restarted():
            jaxring.rebuild()
        else:
            lose_one(training, args.steps // 4, args.steps // 2)
            if jax.process_index() == 0 and not begins_as_alone(training):
                return 1
        training.hand_over()
        train(training, 3 * args.steps // 4)
        started = grow(training, stack)
    training.hand_over()
    train(training, args.steps)

    again = Training(training.programs, settings, corpus, args.rows)
    while again.done < settings.steps:
        if not again.advance():
            say("FAILED: a step of the undisturbed run did not count")
            return 1
    # The fourth process ends before process 0, which holds its coordination service.
    if started is not None and started.wait() != 0:
        say(f"FAILED: the process that was added ended with {started.returncode}")
        return 1
    one, other = training.losses[settings.steps - 1], again.losses[settings.steps - 1]
    apart = report.relative_difference(one, other)
    say(f"last loss {one:.6f} after {training.changes} changes of members, {other:.6f} undisturbed: {apart:.1e} apart")
    if apart > TOLERANCE or (started and training.changes < 3):
        say(f"FAILED: more than {TOLERANCE:g} apart, or nothing happened")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
