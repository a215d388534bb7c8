"""A random program evaluated by NumPy in float64, and how far a right result may be off.

Floats are computed in float64 whatever their dtype, without rounding; integers as they are. How much rounding does to a
program is found by evaluating it again with noise of each dtype's precision in every operation: what that changes, with
a margin, is the tolerance. What no rounding touches must be equal.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from rnd_dual import Dual, add, cos, depth, jointly, lift, linear, mul, plain, scale, sin, tanh
from rnd_ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rnd_program import Block, Program, Statement, Type

# A cotangent or tangent of a value is made of it by these.
SLOPE, OFFSET = 0.5, 0.25
_MARGIN = 24.0
_NOISY_RUNS = 2


def is_float(dtype: str) -> bool:
    """Whether it has derivatives."""
    return dtype.startswith(("float", "bfloat", "complex"))


def _wide(dtype: str) -> Any:
    return np.complex128 if dtype.startswith("complex") else np.float64 if is_float(dtype) else np.dtype(dtype)


@dataclasses.dataclass(frozen=True)
class Value:
    """Of all ranks: an array, or `Dual`."""

    data: Any
    dtype: str


def expected(program: Program, inputs: Sequence[Any]) -> list[tuple[np.ndarray, float]]:
    """Each output, and its tolerance."""
    with np.errstate(all="ignore"):
        clean = Evaluation(program, None).run(inputs)
        noisy = [Evaluation(program, np.random.default_rng(i)).run(inputs) for i in range(_NOISY_RUNS)]
    found = []
    for i, (value, dtype) in enumerate(clean):
        if not is_float(dtype):
            found.append((value.astype(dtype), 0.0))
            continue
        with np.errstate(all="ignore"):
            off = max((float(np.nanmax(np.abs(other[i][0] - value), initial=0.0)) for other in noisy), default=0.0)
            large = float(np.max(np.abs(np.nan_to_num(value, posinf=0, neginf=0)), initial=0.0))
        found.append((value, _MARGIN * off + (4 * _precision(dtype)[0] * large if off else 0.0)))
    return found


def _precision(dtype: str) -> tuple[float, float]:
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    info = ml_dtypes.finfo(part)
    return float(info.eps), float(info.smallest_subnormal)


class Evaluation:
    """One evaluation, with noise from ``noise``."""

    def __init__(self, program: Program, noise: np.random.Generator | None) -> None:
        self.program, self.noise = program, noise
        self.mesh = program.sizes
        self.devices = math.prod(self.mesh.values())
        self.batch: list[tuple[str | None, int]] = []

    def run(self, inputs: Sequence[Any]) -> list[tuple[np.ndarray, str]]:
        """The outputs as the mapped function gives them, and their dtypes."""
        program = self.program
        values = [self._stacked(x, each) for x, each in zip(inputs, program.inputs, strict=True)]
        types = [(each.vary, each.dtype) for each in program.inputs]
        if program.outer == "vmap":
            self.batch = [(None, len(inputs[0]))]
            return [self._global(v, t) for v, t in zip(self.block(program.body, values), program.outputs, strict=True)]
        if program.outer in ("", "remat"):
            results = self.block(program.body, values)
        elif program.outer == "jvp":
            results = self.jvp(program.body, values)
        else:
            count = len(program.body.results)
            results = self.vjp(program.body, values, [v for v, _ in types], [t.vary for t in program.outputs[:count]])
        return [self._global(v, t) for v, t in zip(results, program.outputs, strict=True)]

    def _stacked(self, x: Any, of: Type) -> Value:
        """An input ``[batch..., shards, *shape]`` on every device."""
        x = np.asarray(x)
        lead = x.ndim - len(of.shape) - 1
        sizes = [size if name in of.vary else 1 for name, size in self.mesh.items()]
        x = x.reshape(*x.shape[:lead], *sizes, *of.shape)
        x = np.broadcast_to(x, (*x.shape[:lead], *self.mesh.values(), *of.shape))
        return Value(x.reshape(*x.shape[:lead], self.devices, *of.shape).astype(_wide(of.dtype)), of.dtype)

    def _global(self, value: Value, of: Type) -> tuple[np.ndarray, str]:
        x, lead = plain(value.data), len(self.batch)
        for place, (_, size) in enumerate(self.batch):
            if x.shape[place] != size:
                x = np.repeat(x, size, axis=place)
        x = x.reshape(*x.shape[:lead], *self.mesh.values(), *x.shape[lead + 1 :])
        at = [slice(None) if name in of.vary else slice(0, 1) for name in self.mesh]
        x = x[(*[slice(None)] * lead, *at)]
        shards = math.prod(x.shape[lead : lead + len(self.mesh)])
        return x.reshape(*x.shape[:lead], shards, *x.shape[lead + len(self.mesh) :]), value.dtype

    def block(self, block: Block, args: Sequence[Value]) -> list[Value]:
        """A call of a block."""
        env = dict(zip(block.params, args, strict=True))
        for statement in block.statements:
            outs = getattr(self, f"do_{statement.kind}")(statement, [env[a] for a in statement.args])
            env.update(zip(statement.outs, outs, strict=True))
        return [env[i] for i in block.results]

    @property
    def lead(self) -> int:
        """Axes before a value's own."""
        return len(self.batch) + 1

    def noisy(self, dtype: str, times: int = 1) -> Callable[[Any], Any]:
        """Rounds values at random, so many times, where the dtype rounds and that is to be looked for."""
        if self.noise is None or not is_float(dtype):
            return lambda a: a
        eps, tiny = _precision(dtype)

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

    # Operations of one rank.

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
            return [self.rounded(linear(lambda a: a.astype(_wide(dtype)), x.data), dtype)]
        data = x.data & x.data.dtype.type(7) if is_float(dtype) and x.dtype != "bool" else x.data
        return [self.rounded(data.astype(_wide(dtype)), dtype)]

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
        return [Value(self._joined(np.concatenate, [x.data for x in args]), args[0].dtype)]

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

    def _joined(self, f: Any, xs: list[Any]) -> Any:
        def joined(*arrays: Any) -> Any:
            lead = np.broadcast_shapes(*(a.shape[: len(self.batch)] for a in arrays))
            return f([np.broadcast_to(a, (*lead, *a.shape[len(self.batch) :])) for a in arrays], axis=self.lead)

        return jointly(joined, *xs)

    # Collectives.

    def do_collective(self, s: Statement, args: list[Value]) -> list[Value]:
        """One of each leaf; ``name`` says which."""
        p = s.params
        ranks = Ranks(self.mesh, self.batch, p["axes"], p.get("groups"))
        if p["name"] == "ragged_all_to_all":
            x, output = args
            data = ranks.ragged(x.data, output.data, p["sizes"], p["starts"], p["lands"])
            return [Value(data, x.dtype)]
        return [self._collective(ranks, p, x) for x in args]

    def _collective(self, ranks: Ranks, p: dict[str, Any], x: Value) -> Value:
        name, op, data, dtype = p["name"], p.get("op"), x.data, x.dtype
        if p.get("stopped"):
            data = lift(plain(data), depth(data))
        if op is not None:
            if dtype == "bool" and op == "sum":
                data, dtype = data.astype(np.int32), "int32"
            data = ranks.reduce(data, op)
            if op in ("sum", "prod", "mean"):
                data = self.rounded(data, dtype, ranks.size).data
        if name in ("broadcast",):
            data = ranks.root(data, p["root"])
        elif name in ("all_gather", "gather"):
            data = ranks.gather(data, p["axis"], p["tiled"])
        elif name == "scatter":
            data = ranks.own(ranks.root(data, p["root"]), p["axis"], p["tiled"])
        elif name == "reduce_scatter":
            data = ranks.own(data, p["axis"], p["tiled"])
        elif name == "all_to_all":
            data = ranks.exchange(data, p["split"], p["concat"], p["tiled"])
        elif name in ("permute", "message"):
            data = ranks.permute(data, p["perm"])
        if name in ("reduce", "gather"):
            data = ranks.only(data, p["root"])
        return Value(data, dtype)

    # Blocks.

    def do_call(self, s: Statement, args: list[Value]) -> list[Value]:
        """jit, remat; custom_jvp and custom_vjp have half the derivative."""
        results = self.block(s.blocks[0], args)
        if s.params["how"] not in ("custom_jvp", "custom_vjp"):
            return results
        return [
            Value(Dual(y.data.p, None if y.data.t is None else scale(y.data.t, 0.5)), y.dtype)
            if isinstance(y.data, Dual)
            else y
            for y in results
        ]

    def do_scan(self, s: Statement, args: list[Value]) -> list[Value]:
        """scan and fori_loop: carried values, slices, constants; results carried and stacked."""
        p = s.params
        carried, rest = args[: p["carried"]], args[p["carried"] :]
        slices, constants = rest[: p["slices"]], rest[p["slices"] :]
        stacked: list[list[Any]] = []
        order = range(p["length"])
        for i in reversed(order) if p.get("reverse") else order:
            now = [Value(linear(lambda a, i=i: np.take(a, i, axis=self.lead), x.data), x.dtype) for x in slices]
            results = self.block(s.blocks[0], [*carried, *now, *constants])
            carried = results[: p["carried"]]
            stacked.append([y.data for y in results[p["carried"] :]])
        if p.get("reverse"):
            stacked.reverse()
        types = [y.dtype for y in results[p["carried"] :]]
        joined = [
            Value(self._joined(np.stack, list(column)), dtype)
            for column, dtype in zip(zip(*stacked, strict=True), types, strict=True)
        ]
        return [*carried, *joined]

    def do_while(self, s: Statement, args: list[Value]) -> list[Value]:
        """As many times as the first argument says, on each device."""
        limit, carried, constants = args[0], args[1 : 1 + s.params["carried"]], args[1 + s.params["carried"] :]
        for i in range(int(np.max(limit.data, initial=0))):
            new = self.block(s.blocks[0], [*carried, *constants])
            carried = [self._chosen(limit.data > i, [a, b]) for a, b in zip(new, carried, strict=True)]
        return list(carried)

    def do_branch(self, s: Statement, args: list[Value]) -> list[Value]:
        """cond and switch, by the first argument."""
        index, results = args[0].data, [self.block(block, args[1:]) for block in s.blocks]
        chosen = results[-1]
        for i in range(len(results) - 2, -1, -1):
            chosen = [self._chosen(index == i, [a, b]) for a, b in zip(results[i], chosen, strict=True)]
        return chosen

    def _chosen(self, condition: Any, pair: list[Value]) -> Value:
        def f(a: Any, b: Any) -> Any:
            return np.where(condition.reshape(*condition.shape, *[1] * (a.ndim - condition.ndim)), a, b)

        return Value(jointly(f, pair[0].data, pair[1].data), pair[0].dtype)

    def do_vmap(self, s: Statement, args: list[Value]) -> list[Value]:
        """Over the first axis of the arguments that ``mapped`` names."""
        p, lead = s.params, self.lead

        def enter(x: Value, mapped: bool) -> Value:
            return Value(linear(lambda a: np.moveaxis(a, lead, 0) if mapped else a[None], x.data), x.dtype)

        inner = [enter(x, i in p["mapped"]) for i, x in enumerate(args)]
        self.batch.insert(0, (p["axis"], p["size"]))
        results = self.block(s.blocks[0], inner)
        self.batch.pop(0)

        def leave(a: Any) -> Any:
            return np.moveaxis(a if len(a) == p["size"] else np.repeat(a, p["size"], axis=0), 0, lead)

        return [Value(linear(leave, y.data), y.dtype) for y in results]

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


__all__ = ["Evaluation", "Value", "cos", "expected", "is_float"]
