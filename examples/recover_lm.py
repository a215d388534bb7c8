"""Train on while a process is killed, without it, and with it again once it is back.

    jaxring run -n 3 --restart 1 examples/recover_lm.py

Every step trains on the same rows, which the living processes divide among them. After a third of the steps
the last process kills itself. The step fails in the others: it counts in none of them, they shrink the job and do it
again. When the launcher has started the lost process again they rebuild the job with it, and it gets the state
of the step that they are at; at two thirds they wait for it. Then the same is trained once more, undisturbed. The last
losses differ by rounding only, since the rows were added up in another order meanwhile.
"""

import argparse
import os
import signal
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
ERRORS = (jax.errors.JaxRuntimeError, jaxring.JaxringError, ValueError)


class Programs:
    """What is compiled, once: processes that come back compile the same, and so meet the others' collectives."""

    def __init__(self, settings: Settings) -> None:
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.by_device, self.everywhere = NamedSharding(self.mesh, P(AXIS)), NamedSharding(self.mesh, P())
        step = partial(train_step, settings, mean_by_jaxring)
        self.step = self._compiled(step, (P(), P(AXIS)), (P(), P()))
        self.least = self._compiled(lambda x: jaxring.all_reduce(x[0], AXIS, op="min"), P(AXIS), P())
        self.from_first = self._compiled(lambda tree: jaxring.broadcast(tree, AXIS, root=0), P(), P())

    def _compiled(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        return jax.jit(jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs))

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
        except ERRORS as error:
            print(f"process {jax.process_index()}, step {step}: {str(error)[:200]} ...", flush=True)
            ok = False
        if not jaxring.commit(ok):
            return False
        self.state, self.done, self.losses[step] = state, step + 1, float(loss)
        return True

    def take_from_first(self) -> None:
        """All processes get the step and the state of process 0, which was never lost."""
        step, self.state = jax.block_until_ready(self.programs.from_first((np.int32(self.done), self.state)))
        self.done = int(step)


def say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)


def disturbed(training: Training, kill_at: int, wait_at: int) -> None:
    """Train to the end. The last process is killed when it comes to `kill_at`, and is back by `wait_at`."""
    victim = jax.process_index() == jax.process_count() - 1
    steps = training.settings.steps
    back = recovery.restarted()
    if back:
        jaxring.rebuild()
        training.take_from_first()
    while training.done < steps:
        if victim and not back and training.done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        # All must see it at the same step.
        if recovery.members().lost and training.programs.agree(len(recovery.waiting())):
            say(f"epoch {jaxring.rebuild().epoch}: processes {recovery.members().processes}")
            training.take_from_first()
        if recovery.members().lost and training.done == wait_at:
            time.sleep(0.05)
        elif training.advance():
            say(f"step {training.done:>4} of {steps}, loss {training.losses[training.done - 1]:.4f}")
        else:
            say(f"epoch {jaxring.shrink().epoch}: processes {recovery.members().processes} go on")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--rows", type=int, default=12, help="of a batch; divisible by whatever number of devices lives"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    args = parser.parse_args()
    settings = Settings(args.steps, config=model.Config(width=args.width, layers=args.layers))
    corpus = Corpus(limit_bytes=4 << 20)
    programs = Programs(settings)
    training = Training(programs, settings, corpus, args.rows)
    disturbed(training, args.steps // 3, 2 * args.steps // 3)
    epochs = recovery.members().epoch

    again = Training(programs, settings, corpus, args.rows)
    while again.done < settings.steps:
        if not again.advance():
            say("FAILED: a step of the undisturbed run did not count")
            return 1
    one, other = training.losses[settings.steps - 1], again.losses[settings.steps - 1]
    apart = report.relative_difference(one, other)
    say(f"last loss {one:.6f} after {epochs} changes of members, {other:.6f} undisturbed: {apart:.1e} apart")
    if apart > TOLERANCE or epochs < 2:
        say(f"FAILED: more than {TOLERANCE:g} apart, or nothing happened")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
