"""Data-parallel training of the model. The caller says which collective computes the gradients' mean."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lm import model
from lm.data import Corpus
from lm.progress import Progress

AXIS = "data"
Mean = Callable[[Any], Any]


@dataclass(frozen=True)
class Settings:
    steps: int = 80
    rows_per_device: int = 2
    rate: float = 3e-3
    warmup: int = 10
    seed: int = 0
    config: model.Config = field(default_factory=model.Config)


@dataclass
class Run:
    """The results of one training run."""

    name: str
    losses: list[float]
    held_out: float
    seconds: float  # of the steps, without compilation and without the first step, which opens connections
    tokens: int
    xla_collectives: int  # in the compiled training step
    jaxring_collectives: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.tokens else float("nan")


def mean_by_jaxring(tree: Any) -> Any:
    import jaxring

    return jaxring.all_reduce(tree, AXIS, op="mean")


def mean_by_psum(tree: Any) -> Any:
    size = jax.lax.axis_size(AXIS)
    return jax.tree.map(lambda x: jax.lax.psum(x, AXIS) / size, tree)


def train_step(settings: Settings, mean: Mean, state: model.State, text: jax.Array) -> tuple[model.State, jax.Array]:
    # Each device differentiates its own copy of the parameters ("varying" in JAX), so JAX adds no psum to the backward
    # pass, and the sum over devices is left to this program.
    params = jax.tree.map(lambda p: jax.lax.pcast(p, AXIS, to="varying"), state.params)
    loss, gradients = mean(jax.value_and_grad(model.loss)(params, text))
    state = model.adamw(state, gradients, rate=settings.rate, warmup=settings.warmup, steps=settings.steps)
    return state, loss


def _evaluate(mean: Mean, params: model.Params, text: jax.Array) -> jax.Array:
    params = jax.tree.map(lambda p: jax.lax.pcast(p, AXIS, to="varying"), params)
    return mean(model.loss(params, text))


def count_collectives(hlo: str) -> tuple[int, int]:
    """The numbers of XLA's own and of jaxring's collectives in a compiled program."""
    xla = re.findall(r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", hlo)
    return len(xla), len(re.findall(r'custom_call_target="jaxring', hlo))


@dataclass
class Prepared:
    """A compiled training step ``step(state, text) -> (state, loss)``, and its arguments."""

    step: Any
    state: model.State
    batch: Callable[[int], jax.Array]  # the text of a step, by its number
    evaluate: Callable[[model.Params], jax.Array]  # the loss on text held out


def prepare(mean: Mean, mesh: Mesh, corpus: Corpus, settings: Settings) -> Prepared:
    length = settings.config.context
    rows = settings.rows_per_device * mesh.size
    by_row = NamedSharding(mesh, P(AXIS))
    shard_map = partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(AXIS)), check_vma=True)

    def place(text: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(text.shape, by_row, lambda index: text[index])

    def batch(step: int) -> jax.Array:
        return place(corpus.batch(step, seed=settings.seed, rows=rows, length=length))

    def evaluate(params: model.Params) -> jax.Array:
        f = jax.jit(shard_map(partial(_evaluate, mean), out_specs=P()))
        return f(params, place(corpus.held_out_batch(rows=8 * rows, length=length)))

    step = jax.jit(shard_map(partial(train_step, settings, mean), out_specs=(P(), P())), donate_argnums=0)
    init = partial(model.init_state, settings.config, settings.seed)
    state = jax.jit(init, out_shardings=NamedSharding(mesh, P()))()
    return Prepared(step.lower(state, batch(0)).compile(), state, batch, evaluate)


def train(name: str, mean: Mean, mesh: Mesh, corpus: Corpus, settings: Settings) -> Run:
    tokens = settings.rows_per_device * mesh.size * settings.config.context
    prepared = prepare(mean, mesh, corpus, settings)
    state = prepared.state
    losses = []
    with Progress(name, settings.steps) as progress:
        seconds = 0.0
        for index in range(settings.steps):
            text = prepared.batch(index)
            begin = time.perf_counter()
            state, loss = prepared.step(state, text)
            losses.append(float(loss))
            seconds += (time.perf_counter() - begin) if index else 0.0
            progress.advance(losses[-1], index * tokens / seconds if index else 0.0)
    return Run(
        name,
        losses,
        float(prepared.evaluate(state.params)),
        seconds,
        (settings.steps - 1) * tokens,
        *count_collectives(prepared.step.as_text()),
    )
