"""The operations of one rank in NumPy: values of all ranks, and noise where a dtype rounds."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tests.random.rnd_dual import add, jointly, linear, mul, plain, scale, sin, tanh
from tests.random.rnd_program import is_float
from tests.random.rnd_ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.random.rnd_program import Program, Statement


def wide(dtype: str) -> Any:
    """In which dtype it is computed."""
    return np.complex128 if dtype.startswith("complex") else np.float64 if is_float(dtype) else np.dtype(dtype)


def precision(dtype: str) -> tuple[float, float]:
    """Its epsilon and its smallest number."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    info = ml_dtypes.finfo(part)
    return float(info.eps), float(info.smallest_subnormal)


@dataclasses.dataclass(frozen=True)
class Value:
    """Of all ranks: an array, or `Dual`."""

    data: Any
    dtype: str


class Local:
    """The part of the evaluation that does them, with noise from ``noise``."""

    def __init__(self, program: Program, noise: np.random.Generator | None) -> None:
        self.program, self.noise = program, noise
        self.mesh = program.sizes
        self.devices = math.prod(self.mesh.values())
        self.batch: list[tuple[str | None, int]] = []

    @property
    def lead(self) -> int:
        """Axes before a value's own."""
        return len(self.batch) + 1

    def noisy(self, dtype: str, times: int = 1) -> Callable[[Any], Any]:
        """Rounds values at random, so many times, where the dtype rounds and that is to be looked for."""
        if self.noise is None or not is_float(dtype):
            return lambda a: a
        eps, tiny = precision(dtype)

        def noisy(a: Any) -> Any:
            assert self.noise is not None
            u, v = self.noise.uniform(-1, 1, (2, *np.shape(a)))
            return np.where(a == 0, a, a * (1 + times * eps * u) + times * tiny * v)

        return noisy

    def rounded(self, data: Any, dtype: str, times: int = 1) -> Value:
        """A result of an operation that rounds, so many times."""
        if self.noise is None or not is_float(dtype):
            return Value(data, dtype)
        return Value(linear(self.noisy(dtype, times), data), dtype)

    def do_unary(self, s: Statement, args: list[Value]) -> list[Value]:
        """One operand."""
        (x,), f = args, s.params["f"]
        if f == "scale":
            return [self.rounded(scale(x.data, s.params["factor"]), x.dtype)]
        if f == "tanh":
            return [self.rounded(tanh(x.data, self.noisy(x.dtype, 2)), x.dtype, 2)]
        if f == "sin":
            return [self.rounded(sin(x.data), x.dtype, 2)]
        if f == "not":
            return [Value(~x.data, x.dtype)]
        if f == "mod":
            return [Value(np.mod(x.data, np.int32(s.params["n"])), x.dtype)]
        function = {"neg": np.negative, "conj": np.conj}[f]
        return [Value(linear(function, x.data), x.dtype)]

    def do_binary(self, s: Statement, args: list[Value]) -> list[Value]:
        """Two operands of one dtype."""
        (x, y), f = args, s.params["f"]
        if f == "less":
            return [Value(plain(x.data) < plain(y.data), "bool")]
        if f in ("and", "or", "xor"):
            return [
                Value({"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[f](x.data, y.data), x.dtype)
            ]
        whole = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
        real = {"add": add, "sub": lambda a, b: add(a, scale(b, -1.0)), "mul": mul}
        data = (real if is_float(x.dtype) else whole)[f](x.data, y.data)
        return [self.rounded(data, x.dtype, 2)]

    def do_where(self, s: Statement, args: list[Value]) -> list[Value]:
        """A selection by bool."""
        c, x, y = args
        return [Value(jointly(lambda a, b: np.where(plain(c.data), a, b), x.data, y.data), x.dtype)]

    def do_cast(self, s: Statement, args: list[Value]) -> list[Value]:
        """To another dtype."""
        (x,), dtype = args, s.params["dtype"]
        if is_float(x.dtype):
            if not dtype.startswith("complex") and x.dtype.startswith("complex"):
                return [self.rounded(linear(np.real, x.data), dtype)]
            return [self.rounded(linear(lambda a: a.astype(wide(dtype)), x.data), dtype)]
        data = x.data & x.data.dtype.type(7) if is_float(dtype) and x.dtype != "bool" else x.data
        return [self.rounded(data.astype(wide(dtype)), dtype)]

    def do_reshape(self, s: Statement, args: list[Value]) -> list[Value]:
        """Another shape."""
        return [
            Value(linear(lambda a: a.reshape(*a.shape[: self.lead], *s.params["shape"]), args[0].data), args[0].dtype)
        ]

    def do_transpose(self, s: Statement, args: list[Value]) -> list[Value]:
        """The axes in reverse."""

        def f(a: Any) -> Any:
            return a.transpose(*range(self.lead), *reversed(range(self.lead, a.ndim)))

        return [Value(linear(f, args[0].data), args[0].dtype)]

    def do_take(self, s: Statement, args: list[Value]) -> list[Value]:
        """Some entries of the first axis."""
        return [Value(linear(lambda a: np.take(a, s.params["at"], axis=self.lead), args[0].data), args[0].dtype)]

    def do_concat(self, s: Statement, args: list[Value]) -> list[Value]:
        """Along the first axis."""
        return [Value(self.joined(np.concatenate, [x.data for x in args]), args[0].dtype)]

    def do_total(self, s: Statement, args: list[Value]) -> list[Value]:
        """The sum over all elements."""
        (x,) = args

        def f(a: Any) -> Any:
            return np.add.reduce(a, axis=tuple(range(self.lead, a.ndim)), dtype=a.dtype)

        return [self.rounded(linear(f, x.data), x.dtype, 4)]

    def do_rank(self, s: Statement, args: list[Value]) -> list[Value]:
        """`jax.lax.axis_index`, made of as many elements as are wanted."""
        ranks = Ranks(self.mesh, self.batch, s.params["axes"])

        def f(a: Any) -> Any:
            shape = [1] * a.ndim
            shape[ranks.lead(a)] = ranks.size
            return np.zeros(a.shape, np.int32) + np.arange(ranks.size, dtype=np.int32).reshape(shape)

        return [Value(ranks.over(f, np.zeros((*[1] * len(self.batch), self.devices), np.int32)), "int32")]

    def joined(self, f: Any, xs: list[Any]) -> Any:
        """``f``, which takes a list and the first axis of a value, of values with or without batch axes."""

        def along(*arrays: Any) -> Any:
            lead = np.broadcast_shapes(*(a.shape[: len(self.batch)] for a in arrays))
            return f([np.broadcast_to(a, (*lead, *a.shape[len(self.batch) :])) for a in arrays], axis=self.lead)

        return jointly(along, *xs)
