"""Train the demo's language model in two groups that exchange what they have learnt now and then (DiLoCo).

    python examples/diloco_lm.py --devices 2
    jaxring run -n 2 examples/diloco_lm.py

The same model is trained from the same seed on the same batches: on one device and without jaxring, which is the
reference, data parallel, and in groups that train by themselves, each on its part of the batches, and exchange each
parameter once in so many steps. The groups' loss must end within 2% of the reference's, and they must send at least ten
times fewer bytes.
"""

import argparse
import sys
import time
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

AXIS = "group"
FEWER = 10  # times fewer bytes
LAST = 10  # losses that are averaged at the end


def plain_mean() -> optax.GradientTransformation:
    def update(updates, state, params=None):
        del params
        return jaxring.all_reduce(updates, AXIS, "mean"), state

    return optax.GradientTransformation(lambda _: (), update)


def adamw(args: argparse.Namespace) -> optax.GradientTransformation:
    warm = min(10, args.steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, args.rate, warm, args.steps, args.rate / 10)
    return optax.adamw(rate, b2=0.95, eps=1e-5, weight_decay=0.01)


def train(
    mesh: Mesh, optimizer: optax.GradientTransformation, config: model.Config, corpus: Corpus, args: argparse.Namespace
) -> tuple[list[float], float, int]:
    """The loss of each step, the seconds of a step, and the bytes that this process has sent in all.

    Each group's parameters have a place of their own along the mesh's axis.
    """
    params = jax.eval_shape(partial(model.init, config), jax.random.key(args.seed))
    specs = jaxring.optax.state_specs(jax.eval_shape(optimizer.init, params), AXIS)
    shard_map = partial(jax.shard_map, mesh=mesh, check_vma=False)

    def begin():
        params = model.init(config, jax.random.key(args.seed))
        return jax.tree.map(lambda p: p[None], params), optimizer.init(params)

    def step(params, state, text):
        params = jax.tree.map(lambda p: p[0], params)
        loss, gradients = jax.value_and_grad(model.loss)(params, text)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        return jax.tree.map(lambda p: p[None], params), state, loss[None]

    params, state = jax.jit(shard_map(begin, in_specs=(), out_specs=(P(AXIS), specs)))()
    run = jax.jit(
        shard_map(step, in_specs=(P(AXIS), specs, P(AXIS)), out_specs=(P(AXIS), specs, P(AXIS))),
        donate_argnums=(0, 1),
    )
    mean_loss = (lambda x: x[0]) if mesh.size == 1 else (lambda x: jaxring.all_reduce(x[0], AXIS, "mean"))
    mean = jax.jit(shard_map(mean_loss, in_specs=P(AXIS), out_specs=P()))
    losses = []
    sent, begun = 0, 0.0
    for index in range(args.steps):
        text = corpus.batch(index, seed=args.seed, rows=args.rows, length=config.context)
        rows = jax.make_array_from_callback(text.shape, NamedSharding(mesh, P(AXIS)), lambda at, text=text: text[at])
        before = jaxring.counters().get("sent_bytes", 0)
        params, state, loss = jax.block_until_ready(run(params, state, rows))
        sent += jaxring.counters()["sent_bytes"] - before if jax.process_count() > 1 else 0
        begun = begun or time.perf_counter()  # without the compilation
        losses.append(float(mean(loss).addressable_shards[0].data))
    return losses, (time.perf_counter() - begun) / max(1, args.steps - 1), sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=16, help="of a batch, shared by all groups (default: 16)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--every", type=int, default=20, help="steps in which each parameter is exchanged once")
    parser.add_argument("--fragments", type=int, help="parts that are exchanged in turn (default: every)")
    parser.add_argument("--outer-rate", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    parser.add_argument("--compress", help="format of what is exchanged, such as int8")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the loss (default: 0.02)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, help="CPU devices of this process (not under `jaxring run`)")
    args = parser.parse_args()
    if args.devices:
        jax.config.update("jax_num_cpu_devices", args.devices)
    everywhere = Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))), (AXIS,))
    alone = Mesh(np.array(jax.local_devices()[:1]), (AXIS,))
    config, corpus = model.Config(width=args.width, layers=args.layers), Corpus()
    outer = optax.sgd(args.outer_rate, momentum=args.outer_momentum, nesterov=True)
    local = jaxring.optax.diloco(
        AXIS, adamw(args), every=args.every, fragments=args.fragments, outer=outer, compress=args.compress
    )
    runs = {
        "one device": (alone, adamw(args)),
        "data parallel": (everywhere, optax.chain(plain_mean(), adamw(args))),
        "DiLoCo": (everywhere, local),
    }
    ends, bytes_sent = {}, {}
    for name, (mesh, optimizer) in runs.items():
        losses, seconds, bytes_sent[name] = train(mesh, optimizer, config, corpus, args)
        ends[name] = float(np.mean(losses[-LAST:]))
        apart = ends[name] / ends["one device"] - 1
        tokens = args.steps * args.rows * config.context // mesh.size
        if jax.process_index() == 0:
            print(
                f"{name:>14}: first loss {losses[0]:.4f}, last {ends[name]:.4f}, {apart:+.2%}, "
                f"{bytes_sent[name] / tokens:.1f} bytes a token, {seconds * 1e3:.1f} ms a step",
                flush=True,
            )
    wrong = []
    for name in ("data parallel", "DiLoCo"):
        apart = ends[name] / ends["one device"] - 1
        if not apart <= args.tolerance:
            wrong.append(f"{name} ends {apart:.2%} above one device")
    if jax.process_count() > 1 and not bytes_sent["DiLoCo"] * FEWER <= bytes_sent["data parallel"]:
        wrong.append(f"DiLoCo sends {bytes_sent['DiLoCo']} bytes, data parallel {bytes_sent['data parallel']}")
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
