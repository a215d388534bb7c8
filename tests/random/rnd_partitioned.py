"""Random programs of plain `jit` over sharded arrays, as Python text: all their collectives are the partitioner's.

Programs whose result rounding decides are not made: what jumps is taken of the inputs, which are exact, and values are
kept near one by tanh.
"""

from __future__ import annotations

import random
from typing import NamedTuple

_MESHES: dict[int, list[tuple[int, ...]]] = {
    8: [(8,), (4, 2), (2, 4), (2, 2, 2), (1, 4, 2), (8, 1)],
    4: [(4,), (2, 2), (1, 4), (2, 1, 2)],
    2: [(2,), (1, 2)],
}
_SIZES = (8, 16, 24, 12, 5)
_NAMES = ("a", "b", "c")


class Partitioned(NamedTuple):
    """The text of a function ``program(*inputs)``, its inputs, and its mesh. ``explicit``: the type of its axes."""

    seed: int
    order: tuple[int, ...]
    axes: tuple[tuple[str, int], ...]
    explicit: bool
    inputs: tuple[tuple[tuple[int, int], str, tuple[tuple[str, ...], ...]], ...]  # shape, dtype, axes of each dimension
    text: str

    def describe(self) -> str:
        """All that is needed to run it."""
        kind = "explicit" if self.explicit else "auto"
        head = f"# seed {self.seed}, devices {self.order}, {kind} mesh {dict(self.axes)}"
        return "\n".join([head, *(f"# input {each}" for each in self.inputs), self.text])


class _Maker:
    def __init__(self, seed: int, devices: int) -> None:
        self.rng = random.Random(f"partitioned {seed}")
        self.seed, self.devices = seed, devices
        self.lines: list[str] = []
        self.values: list[tuple[str, tuple[int, int]]] = []
        self.made = 0
        self.explicit = self.rng.random() < 0.3
        order = list(range(devices))
        if self.rng.random() < 0.6:
            self.rng.shuffle(order)
        self.order = tuple(order)
        shape = self.rng.choice(_MESHES[devices])
        self.axes = tuple(zip(_NAMES, shape, strict=False))

    def spec(self, shape: tuple[int, int], even: bool = False) -> tuple[tuple[str, ...], ...]:
        """Mesh axes for each dimension; with ``even`` only such as divide it."""
        axes = list(self.axes)
        self.rng.shuffle(axes)
        taken: list[list[str]] = [[], []]
        sizes = [1, 1]
        for name, size in axes:
            dimension = self.rng.choice((0, 1, None))
            if dimension is None or ((even or self.explicit) and shape[dimension] % (sizes[dimension] * size)):
                continue
            taken[dimension].append(name)
            sizes[dimension] *= size
        return tuple(map(tuple, taken))

    def add(self, expression: str, shape: tuple[int, int]) -> None:
        name = f"v{self.made}"
        self.made += 1
        self.lines.append(f"{name} = {expression}")
        self.values.append((name, shape))

    def pick(self) -> tuple[str, tuple[int, int]]:
        return self.rng.choice(self.values[-4:])

    def make(self) -> Partitioned:
        inputs = []
        for i in range(self.rng.randint(1, 2)):
            shape = (self.rng.choice(_SIZES), self.rng.choice(_SIZES))
            dtype = self.rng.choice(["float32", "float32", "float32", "float64", "bfloat16", "int32", "complex64"])
            inputs.append((shape, dtype, self.spec(shape, even=True)))
            self.add(f"start(x{i})", shape)
        exact = [(f"x{i}", shape) for i, (shape, _, _) in enumerate(inputs)]
        for _ in range(self.rng.randint(3, 7)):
            self.statement(exact)
        last = [name for name, _ in self.values[-3:]]
        body = [*self.lines, f"return {', '.join(last)},"]
        arguments = ", ".join(f"x{i}" for i in range(len(inputs)))
        text = f"def program({arguments}):\n" + "\n".join(f"    {line}" for line in body)
        return Partitioned(self.seed, self.order, self.axes, self.explicit, tuple(inputs), text)

    def statement(self, exact: list[tuple[str, tuple[int, int]]]) -> None:
        name, shape = self.pick()
        n, m = shape
        axis = self.rng.randint(0, 1)
        moved, plain = f"put({name}, {self.spec(shape)})", self.rng.random()
        if plain < 0.2:
            self.add(moved, shape)
            return
        x, (p, q) = self.rng.choice(exact)
        reduction = self.rng.choice(("sum", "max", "min", "mean", "prod"))
        k = self.rng.randint(1, 7)
        body = self.rng.choice(
            [
                f"jnp.tanh(c + c.{self.rng.choice(('sum', 'max', 'mean'))}({axis}, keepdims=True))",
                f"jnp.tanh(put(c, {self.spec(shape)}) + 0.1)",
                f"roll(c, {k}, {axis}) * 0.9",
            ]
        )
        if self.explicit:  # what goes round a loop, or comes out of either branch, is sharded alike
            spec = self.spec(shape)
            body, name = f"put({body}, {spec})", f"put({name}, {spec})"
        loss = self.rng.choice(
            [
                f"lambda w: jnp.tanh({name} * w).sum()",
                f"lambda w: product({name}.T, w * {name}).max()",
                f"lambda w: jnp.tanh(put(w * {name}, {self.spec(shape)})).mean()",
            ]
        )
        scanned = f"lambda s, row: ((s + row.{reduction}()).astype(s.dtype), s * row)"
        loose = [*self.spec(shape)]  # but for one dimension, which is whole on each device
        loose[axis] = ()
        along = f"put({name}, {tuple(loose)})"
        rows = f"put({name}, {((), self.spec(shape)[1])})"
        at = f"({x}.real.reshape(-1)[:3].astype(jnp.int32) % {n})"
        simple: list[tuple[str, tuple[int, int]]] = [
            (f"jnp.tanh({name} - {name}.{reduction}({axis}, keepdims=True))", shape),
            (f"jnp.tanh({name} * {name}.{reduction}())", shape),
            (f"jnp.tanh(product({name}, {name}.T))", (n, n)),
            (f"jnp.tanh(product({name}.T, {name}))", (m, m)),
            (f"roll({name}, {k}, {axis})", shape),
            (f"put({name}.T, {self.spec((m, n))})", (m, n)),
            (f"jax.lax.fori_loop(0, {self.rng.randint(1, 3)}, lambda i, c: {body}, {name})", shape),
            (f"jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 2, lambda c: c * 0.5, {name})", shape),
            (f"jax.lax.cond({x}.sum() > 3, lambda c: {body}, lambda c: c * 2, {name})", shape),
            (f"jnp.tanh(einsum('ij,ij->j', {name}, {name}, {self.spec((m, 1))[:1]})) * {name}", shape),
            (f"jnp.tanh(einsum('ij,kj->ki', {name}, {name}, {self.spec((n, n))}))", (n, n)),
            (f"jnp.sort({along}, {axis})", shape),
            (f"jnp.cumsum({along}, {axis}) / 9", shape),
            (f"jax.lax.scan({scanned}, jnp.sum({name}) * 0, {rows})[1]", shape),
            (f"jax.vmap(jax.grad(lambda w: jnp.tanh(w * w).sum()), {axis}, {axis})({along})", shape),
            (f"jax.grad({loss})({name})", shape),
            (f"jax.grad(jax.checkpoint({loss}))({name})", shape),
        ]
        partitioned: list[tuple[str, tuple[int, int]]] = [
            (f"jnp.sort({name}, {axis})", shape),
            (f"jnp.cumsum({name}, {axis}) / 9", shape),
            (f"jnp.fft.fft2({name}).real / {n * m}", shape),
            (f"{name} + 0.01 * jnp.argmax({x}.real.astype(jnp.float32))", shape),
            (f"{name} + ({x}.real > 3).any() - ({x}.real >= -9).all()", shape),
            (f"jnp.take({name}, jnp.array([{n - 1}, 0, {k % n}]), axis=0)", (3, m)),
            (f"{name}.at[jnp.array([0, {k % n}])].add(1.5)", shape),
            (f"jnp.take({name}, {at}, axis=0)", (3, m)),
            (f"{name}.at[{at}].add({name}[:3] / 2)", shape),
            (f"jnp.take_along_axis({name}, jnp.resize(jnp.argsort({x}, None), {m})[None] % {n}, 0) + {name}", shape),
            (f"jnp.concatenate([{name}[1:], {name}[:1]])", shape),
            (f"jnp.pad({name}, ((1, 2), (0, 3)))", (n + 3, m + 3)),
            (f"jnp.tanh({name}.reshape(-1)[::-1].reshape({n}, {m}))", shape),
            (f"jax.lax.scan({scanned}, jnp.sum({name}) * 0, {name})[1]", shape),
            (f"jax.vmap(jax.grad(lambda w, s: jnp.tanh(w * s).sum()), (1, None), 1)({name}, {name}.mean())", shape),
            (f"{name}.astype(jnp.bfloat16).sum({axis}, keepdims=True).astype({name}.dtype) / 64 + {name}", shape),
            (f"jnp.tanh(jnp.outer({x}.sum(1).real, {x}.max(0).real) / 50)", (p, q)),
        ]
        # What needs to be told, in explicit meshes, how its result is sharded, or that something is whole everywhere.
        picked, first = self.spec((3, m)), f"put({x}, {((), ())})"
        taken = f"({first}.real.reshape(-1)[:3].astype(jnp.int32) % {n})"
        told: list[tuple[str, tuple[int, int]]] = [
            (f"jnp.fft.fft2({name}).real / {n * m}", shape),
            (f"jnp.fft.fft({along}, axis={axis}).real / {shape[axis]}", shape),
            (f"{name} + 0.01 * jnp.argmax({x}.real.astype(jnp.float32), {axis}).sum()", shape),
            (f"{name} + ({x}.real > 3).any() - ({x}.real >= -9).all()", shape),
            (f"take({name}, jnp.array([{n - 1}, 0, {k % n}]), {picked})", (3, m)),
            (f"take({name}, {taken}, {picked})", (3, m)),
            (f"add_at({name}, jnp.array([0, {k % n}]), 1.5, {self.spec(shape)})", shape),
            (f"add_at({name}, {taken}, {rows}[:3] / 2, {self.spec(shape)})", shape),
        ]
        self.add(*self.rng.choice(simple + (told if self.explicit else partitioned)))


def generate_partitioned(seed: int, devices: int) -> Partitioned:
    """The program of a seed, over so many devices (2, 4 or 8)."""
    return _Maker(seed, devices).make()
