"""Random programs from seeds: which mesh, which inputs, which results. `Nested` makes the statements.

Programs whose result rounding decides are not made: conditions and conversions to integers are of exact values, and
floats are kept near one. What differentiation or NaN leaves without a bound is only moved, or goes through tanh.
"""

from __future__ import annotations

import dataclasses
import math
import random

from tests.random.rnd_nested import Nested
from tests.random.rnd_program import Program, Type, is_float
from tests.random.rnd_scope import Context

# Programs of as many seeds in turn are on the same devices in the same order, so that they may be compiled together.
TOGETHER = 8

_MESHES: dict[int, list[tuple[int, ...]]] = {
    8: [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (4, 1, 2)],
    6: [(6,), (2, 3), (3, 2)],
    5: [(5,)],
    4: [(4,), (2, 2), (2, 1, 2)],
    3: [(3,), (3, 1)],
    2: [(2,), (1, 2)],
    1: [(1,)],
}


def generate(seed: int, devices: int = 8) -> Program:
    """The program of a seed, on some of so many devices."""
    return Generator(seed, devices).program()


class Generator(Nested):
    """Makes one program."""

    def __init__(self, seed: int, devices: int) -> None:
        super().__init__(seed)
        self.seed = seed
        together = random.Random(f"devices {seed // TOGETHER}")
        count = devices
        if devices == 8:  # all devices of a job of several processes take part
            count = together.choice([8, 8, 8, 8, 6, 5, 4, 4, 3, 2, 1])
        order = list(range(devices))
        if together.random() < 0.6:
            together.shuffle(order)
        self.order = tuple(order[:count])
        shape = self.rng.choice(_MESHES[count])
        names = self.rng.sample(["a", "b", "c"], len(shape))
        self.axes = tuple(zip(names, shape, strict=True))
        manual = list(names)
        if len(names) > 1 and self.rng.random() < 0.2:
            manual.remove(self.rng.choice(manual))
        self.manual = tuple(manual)
        self.sizes = {name: size for name, size in self.axes if name in manual}
        self.check_vma = self.rng.random() < 0.5

    def program(self) -> Program:
        """All of it."""
        outer = self.rng.choice(["", "", "", "", "", "vjp", "jvp", "vmap", "remat"])
        context = Context(derivatives=(outer,) if outer in ("vjp", "jvp") else (), batched=outer == "vmap")
        inputs = [self._input(i, outer) for i in range(self.rng.randint(2, 4))]
        params = tuple(self.new(t if self.check_vma else self.everywhere(t)) for t in inputs)
        body = self.block(params, context, self.rng.randint(3, 7))
        new = [v for s in body.statements for v in s.outs]
        floats = [v for v in new if is_float(self.types[v].dtype)]
        if outer in ("vjp", "jvp"):
            new = floats or [next(v for v in params if is_float(self.types[v].dtype))]
        results = tuple(new[-5:])
        outputs = [self.types[v] for v in results]
        if outer == "vjp":
            outputs += [dataclasses.replace(t, moved=False) for t in inputs if is_float(t.dtype)]
        if outer == "jvp":
            outputs += [dataclasses.replace(t, moved=False) for t in outputs]
        donated = [i for i in range(len(inputs)) if self.rng.random() < 0.3] if outer in ("", "remat") else []
        return Program(
            self.seed, self.axes, self.order, self.manual, self.check_vma, tuple(inputs), tuple(outputs),
            dataclasses.replace(body, results=results), outer, tuple(donated),
        )  # fmt: skip

    def _input(self, number: int, outer: str) -> Type:
        dtype = "float32" if number == 0 else self.dtype()
        size = self.rng.choice([*self.sizes.values(), 2, 3])
        dims = [self.rng.choice([size, size, 1, 2, 3]) for _ in range(self.rng.choice([0, 1, 1, 1, 2, 2]))]
        most = 6 if outer == "vjp" else 16
        while math.prod(dims) > most:
            dims[dims.index(max(dims))] = max(dims) // 2
        if self.rng.random() < 0.03 and outer not in ("vjp", "jvp"):
            dims = [0, *dims[1:]]
        vary = [name for name in self.sizes if number == 0 or self.rng.random() < 0.75]
        special = number and self.rng.random() < 0.15 and not (outer in ("vjp", "jvp") and is_float(dtype))
        return Type(tuple(dims), dtype, tuple(vary), None if special and is_float(dtype) else 1.0, moved=True)
