"""Train the demo's language model with compressed gradients, with error feedback and without.

    jaxring run -n 2 --devices-per-process 2 examples/compressed_lm.py

The same model is trained from the same seed on the same batches: on one device and without jaxring, which is the
reference, with the mean of the gradients in float32, in int8 with error feedback, and in int4 with error feedback and
without. int8 with error feedback must end within 1% of the loss in float32. `python examples/compressed_lm.py --devices
2` runs it in one process.
"""

import argparse
import sys
from functools import partial

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring.optax
from lm import model
from lm.data import Corpus

AXIS = "data"
TOLERANCE = 0.01  # of the loss, for int8 with error feedback
LAST = 10  # losses that are averaged at the end


def plain_mean() -> optax.GradientTransformation:
    def update(updates, state, params=None):
        del params
        return jaxring.all_reduce(updates, AXIS, "mean"), state

    return optax.GradientTransformation(lambda _: (), update)


def optimizer(mean: optax.GradientTransformation, args: argparse.Namespace) -> optax.GradientTransformation:
    if args.optimizer == "sgd":
        return optax.chain(mean, optax.sgd(args.rate, momentum=0.9))
    warm = min(10, args.steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, args.rate, warm, args.steps, args.rate / 10)
    return optax.chain(mean, optax.adamw(rate, b2=0.95, eps=1e-5, weight_decay=0.01))


def train(
    mesh: Mesh, mean: optax.GradientTransformation, config: model.Config, corpus: Corpus, args: argparse.Namespace
) -> list[float]:
    """The loss of each step."""
    chain = optimizer(mean, args)
    params = jax.eval_shape(partial(model.init, config), jax.random.key(args.seed))
    specs = jaxring.optax.state_specs(jax.eval_shape(chain.init, params), AXIS)
    shard_map = partial(jax.shard_map, mesh=mesh, check_vma=False)

    def begin():
        params = model.init(config, jax.random.key(args.seed))
        return params, chain.init(params)

    def step(params, state, text):
        loss, gradients = jax.value_and_grad(model.loss)(params, text)
        updates, state = chain.update(gradients, state, params)
        loss = loss if mesh.size == 1 else jaxring.all_reduce(loss, AXIS, "mean")
        return optax.apply_updates(params, updates), state, loss

    params, state = jax.jit(shard_map(begin, in_specs=(), out_specs=(P(), specs)))()
    run = jax.jit(shard_map(step, in_specs=(P(), specs, P(AXIS)), out_specs=(P(), specs, P())), donate_argnums=(0, 1))
    losses = []
    for index in range(args.steps):
        text = corpus.batch(index, seed=args.seed, rows=args.rows, length=config.context)
        rows = jax.make_array_from_callback(text.shape, NamedSharding(mesh, P(AXIS)), lambda at, text=text: text[at])
        params, state, loss = run(params, state, rows)
        losses.append(float(loss.addressable_shards[0].data))
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=16, help="of a batch, shared by all devices (default: 16)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, help="CPU devices of this process (not under `jaxring run`)")
    args = parser.parse_args()
    if args.devices:
        jax.config.update("jax_num_cpu_devices", args.devices)
    everywhere = Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))), (AXIS,))
    alone = Mesh(np.array(jax.local_devices()[:1]), (AXIS,))
    config, corpus = model.Config(width=args.width, layers=args.layers), Corpus()
    mean = partial(jaxring.optax.compressed_mean, AXIS)
    runs = {
        "one device": (alone, optax.identity()),
        "float32": (everywhere, plain_mean()),
        "int8, error feedback": (everywhere, mean("int8")),
        "int8": (everywhere, mean("int8", error_feedback=False)),
        "int4, error feedback": (everywhere, mean("int4")),
        "int4": (everywhere, mean("int4", error_feedback=False)),
    }
    ends = {}
    for name, (mesh, transformation) in runs.items():
        losses = train(mesh, transformation, config, corpus, args)
        ends[name] = float(np.mean(losses[-LAST:]))
        apart = ends[name] / ends["one device"] - 1
        if jax.process_index() == 0:
            print(f"{name:>22}: first loss {losses[0]:.4f}, last {ends[name]:.4f}, {apart:+.2%}", flush=True)
    wrong = [
        f"{name} ends {abs(ends[name] / ends['one device'] - 1):.2%} from one device"
        for name in ("float32", "int8, error feedback")
        if not abs(ends[name] / ends["one device"] - 1) <= TOLERANCE
    ]
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
