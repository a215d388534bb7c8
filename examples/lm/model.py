"""A small byte-level transformer in plain JAX, and AdamW."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    vocabulary: int = 256
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 2


def init(config: Config, key: jax.Array) -> Params:
    width = config.width

    def normal(*shape: int, scale: float) -> jax.Array:
        nonlocal key
        key, sub = jax.random.split(key)
        return scale * jax.random.normal(sub, shape, jnp.float32)

    def block() -> Params:
        into, out = 1 / math.sqrt(width), 1 / math.sqrt(width * 2 * config.layers)
        return {
            "norm_attention": jnp.ones(width),
            "qkv": normal(width, 3, config.heads, width // config.heads, scale=into),
            "projection": normal(config.heads, width // config.heads, width, scale=out),
            "norm_mlp": jnp.ones(width),
            "up": normal(width, 4 * width, scale=into),
            "down": normal(4 * width, width, scale=out / 2),
        }

    return {
        "bytes": normal(config.vocabulary, width, scale=0.02),
        "positions": normal(config.context, width, scale=0.02),
        "blocks": [block() for _ in range(config.layers)],
        "norm": jnp.ones(width),
        "logits": normal(width, config.vocabulary, scale=0.02),
    }


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _attention(x: jax.Array, block: Params) -> jax.Array:
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, block["qkv"]), 2, 0)
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / math.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, block["projection"])


def loss(params: Params, text: jax.Array) -> jax.Array:
    """Mean cross-entropy, in nats per byte, of each byte of `text` (rows, length + 1) after those before it."""
    inputs, targets = text[:, :-1].astype(jnp.int32), text[:, 1:].astype(jnp.int32)
    x = params["bytes"][inputs] + params["positions"][: inputs.shape[1]]
    for block in params["blocks"]:
        x = x + _attention(_norm(x, block["norm_attention"]), block)
        x = x + jax.nn.gelu(_norm(x, block["norm_mlp"]) @ block["up"]) @ block["down"]
    logits = jax.nn.log_softmax(_norm(x, params["norm"]) @ params["logits"])
    return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], axis=-1))


class State(NamedTuple):
    """Everything a training step reads and writes."""

    step: jax.Array
    params: Params
    mean: Params  # running mean of the gradients
    square: Params  # and of their squares


def init_state(config: Config, seed: int) -> State:
    params = init(config, jax.random.key(seed))
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(jnp.zeros((), jnp.int32), params, zeros, jax.tree.map(jnp.copy, zeros))


def adamw(state: State, gradients: Params, *, rate: float, warmup: int, steps: int) -> State:
    """One AdamW step; the rate rises linearly for `warmup` steps and then falls along a cosine."""
    b1, b2, eps, decay = 0.9, 0.95, 1e-5, 0.01
    step = state.step + 1
    t = step.astype(jnp.float32)
    progress = jnp.clip((t - warmup) / max(1, steps - warmup), 0, 1)
    rate_now = rate * jnp.minimum(t / warmup, 0.55 + 0.45 * jnp.cos(jnp.pi * progress))
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state.square, gradients)

    def update(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        direction = (m / (1 - b1**t)) / (jnp.sqrt(s / (1 - b2**t)) + eps)
        return p - rate_now * (direction + decay * p)

    return State(step, jax.tree.map(update, state.params, mean, square), mean, square)
