"""Derivatives in NumPy, by tangents: forward, and in reverse by the whole Jacobian."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.random.rnd_dual import Dual, add, depth, lift, linear, mul, plain, scale
from tests.random.rnd_numpy_blocks import Blocks
from tests.random.rnd_numpy_local import Value
from tests.random.rnd_program import OFFSET, SLOPE, is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.random.rnd_program import Block, Statement


class Derivatives(Blocks):
    """The part of the evaluation that takes them."""

    def do_jvp(self, s: Statement, args: list[Value]) -> list[Value]:
        """The results and their tangents."""
        return self.jvp(s.blocks[0], args)

    def jvp(self, block: Block, args: Sequence[Value]) -> list[Value]:
        """The results and their tangents, for tangents that are made of the values."""
        inner = [Value(Dual(x.data, self._other(x).data), x.dtype) if is_float(x.dtype) else x for x in args]
        results = self.block(block, inner)
        values = [y.data if isinstance(y.data, Dual) else Dual(y.data, None) for y in results]
        tangents = [scale(v.p, 0.0) if v.t is None else v.t for v in values]
        return [Value(d, y.dtype) for ds in ([v.p for v in values], tangents) for d, y in zip(ds, results, strict=True)]

    def _other(self, x: Value) -> Value:
        scaled = scale(x.data, SLOPE)
        return self.rounded(add(scaled, np.full_like(plain(x.data), OFFSET)), x.dtype)

    def do_vjp(self, s: Statement, args: list[Value]) -> list[Value]:
        """The results, and the cotangents of the float arguments."""
        return self.vjp(s.blocks[0], args, s.params["vary_in"], s.params["vary_out"])

    def vjp(self, block: Block, args: Sequence[Value], vary_in: Any, vary_out: Any) -> list[Value]:
        """By the whole Jacobian: tangents of every element of every rank, along a batch axis of their own.

        What does not vary over an axis is one value there: it counts once.
        """
        named = [(place, size) for place, (name, size) in enumerate(self.batch) if name is not None]
        basis = {i: self._basis(x, vary_in[i], named) for i, x in enumerate(args) if is_float(x.dtype)}
        total = sum(len(each) for each in basis.values())
        inner, start = [], 0
        for i, x in enumerate(args):
            data = linear(lambda a: a[None], x.data)
            if i in basis:
                tangent = np.zeros((total, *basis[i].shape[1:]), basis[i].dtype)
                tangent[start : start + len(basis[i])] = basis[i]
                start += len(basis[i])
                data = Dual(data, lift(tangent, depth(data)))
            inner.append(Value(data, x.dtype))
        self.batch.insert(0, (None, total))
        results = self.block(block, inner)
        self.batch.pop(0)
        values = [
            Value(linear(lambda a: a[0], y.data.p if isinstance(y.data, Dual) else y.data), y.dtype) for y in results
        ]
        gradient: Any = np.zeros((total, *[1] * len(self.batch)))
        for y, value, vary in zip(results, values, vary_out, strict=True):
            if isinstance(y.data, Dual) and y.data.t is not None:
                product = mul(linear(lambda a: a[None], self._other(value).data), y.data.t)
                gradient = add(gradient, linear(lambda a, v=vary: self._paired(a, v, named), product))
        found, start = [], 0
        for i, each in basis.items():
            own = slice(start, start + len(each))
            part = linear(lambda a, own=own: a[own], gradient)
            start += len(each)
            found.append(
                self.rounded(linear(lambda a, i=i: self._unbasis(a, args[i], vary_in[i], named), part), args[i].dtype)
            )
        return [*values, *found]

    def _basis_shape(self, x: Value, vary: Any, named: Any) -> tuple[list[int], list[int], tuple[int, ...]]:
        shape = plain(x.data).shape[self.lead :]
        return [size for _, size in named], [n if name in vary else 1 for name, n in self.mesh.items()], shape

    def _basis(self, x: Value, vary: Any, named: Any) -> np.ndarray:
        """``[number, batch..., device, *shape]``."""
        batches, devices, shape = self._basis_shape(x, vary, named)
        count = math.prod([*batches, *devices, *shape])
        e = np.eye(count).reshape(count, *batches, *devices, *shape)
        spread = (count, *batches, *self.mesh.values(), *shape)
        e = np.broadcast_to(e, spread).reshape(count, *batches, self.devices, *shape)
        full = [1] * len(self.batch)
        for place, size in named:
            full[place] = size
        e = e.reshape(count, *full, self.devices, *shape)
        return np.concatenate([e.astype(np.complex128), 1j * e]) if x.dtype.startswith("complex") else e

    def _paired(self, a: Any, vary: Any, named: Any) -> Any:
        """The sum of ``[number, batch..., device, *shape]`` over ranks and elements, as real numbers."""
        copies = math.prod(n for name, n in self.mesh.items() if name not in vary)
        a = np.real(a).sum(axis=tuple(range(1 + len(self.batch), a.ndim))) / copies
        for place, size in named:
            # What the batch axis does not tell apart is there once for each.
            a = a.sum(axis=1 + place, keepdims=True) * (size if a.shape[1 + place] == 1 else 1)
        return a

    def _unbasis(self, a: Any, x: Value, vary: Any, named: Any) -> Any:
        """From ``[number, batch...]``, the inverse of `_basis`."""
        batches, devices, shape = self._basis_shape(x, vary, named)
        if x.dtype.startswith("complex"):
            a = a[: len(a) // 2] - 1j * a[len(a) // 2 :]
        rest = a.shape[1:]
        a = a.reshape(*batches, *devices, *shape, *rest)
        # The batch axes without names are last: bring them in front, where named ones have the size 1 still.
        a = np.moveaxis(a, range(a.ndim - len(rest), a.ndim), range(len(rest)))
        for number, (place, _) in enumerate(named):
            a = np.swapaxes(a, place, len(rest) + number)
        a = a.reshape(*a.shape[: len(rest)], *devices, *shape)
        a = np.broadcast_to(a, (*a.shape[: len(rest)], *self.mesh.values(), *shape))
        return a.reshape(*a.shape[: len(rest)], self.devices, *shape)
