"""Random programs from seeds: which mesh, which inputs, which statements. Collectives are chosen in rnd_collectives.

Programs whose result rounding decides are not made: conditions and conversions to integers are of exact values, and
floats are kept near one. What differentiation or NaN leaves without a bound is only moved, or goes through tanh.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
from rnd_collectives import Collectives
from rnd_numpy import is_float
from rnd_program import Block, Program, Statement, Type

if TYPE_CHECKING:
    from collections.abc import Sequence

# Programs of as many seeds in turn are on the same devices in the same order, so that they may be compiled together.
TOGETHER = 8

_DTYPES = {
    "float32": 30, "float64": 8, "bfloat16": 9, "float16": 6, "complex64": 6, "complex128": 3, "float8_e4m3fn": 2,
    "float8_e5m2": 2, "int32": 10, "int64": 3, "int16": 1, "int8": 3, "uint8": 3, "uint16": 1, "uint32": 3, "uint64": 2,
    "bool": 6,
}  # fmt: skip
_MESHES: dict[int, list[tuple[int, ...]]] = {
    8: [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (4, 1, 2)],
    6: [(6,), (2, 3), (3, 2)],
    5: [(5,)],
    4: [(4,), (2, 2), (2, 1, 2)],
    3: [(3,), (3, 1)],
    2: [(2,), (1, 2)],
    1: [(1,)],
}
_MOST_ELEMENTS = 48


@dataclasses.dataclass(frozen=True)
class Context:
    """Where a block stands: ``vmaps`` with names, the derivatives that are taken around it, how deep it is."""

    vmaps: tuple[tuple[str, int], ...] = ()
    derivatives: tuple[str, ...] = ()
    deep: int = 0
    batched: bool = False


def generate(seed: int, devices: int = 8) -> Program:
    """The program of a seed, on some of so many devices."""
    return Generator(seed, devices).program()


class Generator(Collectives):
    """Makes one program."""

    def __init__(self, seed: int, devices: int) -> None:
        self.seed, self.rng = seed, random.Random(f"program {seed}")
        together = random.Random(f"devices {seed // TOGETHER}")
        count = devices
        if devices == 8:  # all devices of a job of several processes take part
            count = together.choice([8, 8, 8, 8, 6, 5, 4, 4, 3, 2, 1])
        order = list(range(devices))
        if together.random() < 0.6:
            together.shuffle(order)
        self.order = tuple(order[:count])
        self.types: dict[int, Type] = {}
        self.statements: list[Statement] = []
        shape = self.rng.choice(_MESHES[count])
        names = self.rng.sample(["a", "b", "c"], len(shape))
        self.axes = tuple(zip(names, shape, strict=True))
        manual = list(names)
        if len(names) > 1 and self.rng.random() < 0.2:
            manual.remove(self.rng.choice(manual))
        self.manual = tuple(manual)
        self.sizes = {name: size for name, size in self.axes if name in manual}
        self.check_vma = self.rng.random() < 0.5

    def dtype(self) -> str:
        """Of an input or a conversion. XLA ends the process at a 16-bit all-reduce of a partially manual region."""
        weights = dict(_DTYPES)
        if len(self.manual) < len(self.axes):
            del weights["bfloat16"], weights["float16"]
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def program(self) -> Program:
        """All of it."""
        outer = self.rng.choice(["", "", "", "", "", "vjp", "jvp", "vmap", "remat"])
        context = Context(derivatives=(outer,) if outer in ("vjp", "jvp") else (), batched=outer == "vmap")
        inputs = [self._input(i, outer) for i in range(self.rng.randint(2, 4))]
        params = tuple(self.new(t if self.check_vma else self._everywhere(t)) for t in inputs)
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

    def _everywhere(self, t: Type) -> Type:
        return dataclasses.replace(t, vary=tuple(self.sizes))

    def vary(self, names: Any) -> tuple[str, ...]:
        """In the mesh's order; without types, everything does."""
        return tuple(name for name in self.sizes if name in names or not self.check_vma)

    def new(self, t: Type) -> int:
        """A value of this type."""
        self.types[len(self.types)] = t
        return len(self.types) - 1

    def add(
        self, kind: str, args: Sequence[int], params: dict[str, Any], types: Sequence[Type], blocks: Any = ()
    ) -> tuple[int, ...]:
        """A statement at the end of the block that is being made."""
        outs = tuple(self.new(t) for t in types)
        self.statements.append(Statement(outs, kind, tuple(args), params, tuple(blocks)))
        self.scope += outs
        return outs

    def block(self, params: Sequence[int], context: Context, length: int) -> Block:
        """Statements after parameters; the results are the caller's to choose."""
        outer = self.statements, getattr(self, "scope", []), getattr(self, "context", None)
        self.statements, self.scope, self.context = [], list(params), context
        for _ in range(length):
            kind = self.rng.random()
            if kind < 0.5:
                self.collective()
            elif kind < 0.72 or context.deep >= 3 or len(self.types) > 120:
                self.simple()
            else:
                self.nested()
        block = Block(tuple(params), tuple(self.statements), ())
        self.statements, self.scope, self.context = outer
        return block

    def pick(self, suits: Any = lambda t: True) -> int | None:
        """A value of the scope, rather a late one."""
        found = [v for v in self.scope if suits(self.types[v])]
        return self.rng.choice(found[-4:] if self.rng.random() < 0.7 else found) if found else None

    # Operations of one rank.

    def simple(self) -> None:
        """One of them."""
        made = self.rng.choice(
            [self._unary, self._binary, self._binary, self._cast, self._move, self._where, self._rank]
        )
        made()

    def _unary(self) -> None:
        v = self.pick(lambda t: t.bound is not None or (is_float(t.dtype) and not t.moved))
        if v is None:
            return
        t = self.types[v]
        if t.dtype == "bool":
            options = ["not"]
        elif t.dtype.startswith("complex"):
            options = ["neg", "conj", "scale"] if t.bound is not None else ["neg", "conj"]
        elif not is_float(t.dtype):
            options = ["neg"]
        elif t.dtype.startswith("float8"):
            return
        else:
            options = ["tanh"] if t.bound is None else ["sin", "tanh", "neg", "scale"]
        f = self.rng.choice(options)
        params: dict[str, Any] = {"f": f}
        bound = t.bound
        if f == "scale":
            params["factor"] = self.rng.choice([0.5, -0.75, 1.5])
            bound = t.bound * 1.5 if t.bound is not None else None
        if f in ("sin", "tanh"):
            bound = 1.0
        self.settle(self.add("unary", [v], params, [dataclasses.replace(t, bound=bound, moved=False)])[0])

    def _binary(self) -> None:
        x = self.pick(lambda t: t.bound is not None and not t.dtype.startswith("float8"))
        if x is None:
            return
        t = self.types[x]
        y = self.pick(lambda u: u.dtype == t.dtype and u.shape == t.shape and u.bound is not None)
        assert y is not None
        u = self.types[y]
        moved = t.moved and u.moved
        if t.dtype == "bool":
            options = ["and", "or", "xor"]
        elif is_float(t.dtype):
            options = ["add", "sub", "mul", "mul"]
            if moved and not t.dtype.startswith("complex"):
                options.append("less")
        else:
            options = ["add", "sub", "mul", "and", "or", "xor", "less"]
        f = self.rng.choice(options)
        assert t.bound is not None
        assert u.bound is not None
        bound = t.bound * u.bound if f == "mul" else t.bound + u.bound
        if not is_float(t.dtype) or f == "less":
            bound = 1.0
        made = Type(t.shape, "bool" if f == "less" else t.dtype, self.vary({*t.vary, *u.vary}), bound)
        self.settle(self.add("binary", [x, y], {"f": f}, [made])[0])

    def settle(self, v: int) -> int:
        """A value that is not much larger than one."""
        t = self.types[v]
        if t.bound is None or t.bound <= 4 or not is_float(t.dtype) or t.dtype.startswith("float8"):
            return v
        factor = 2.0 ** -math.ceil(math.log2(t.bound))
        made = dataclasses.replace(t, bound=t.bound * factor, moved=False)
        return self.add("unary", [v], {"f": "scale", "factor": factor}, [made])[0]

    def _cast(self) -> None:
        v = self.pick(lambda t: t.bound is not None)
        if v is None:
            return
        t = self.types[v]
        wanted = self.dtype()
        if wanted in ("bool", t.dtype) or (is_float(t.dtype) and not is_float(wanted)):
            return
        bound = t.bound if is_float(t.dtype) else 7.0 if t.dtype != "bool" else 1.0
        made = dataclasses.replace(t, dtype=wanted, bound=bound if is_float(wanted) else 1.0, moved=False)
        self.settle(self.add("cast", [v], {"dtype": wanted}, [made])[0])

    def _move(self) -> None:
        v = self.pick()
        assert v is not None
        t = self.types[v]
        kind = self.rng.choice(["reshape", "transpose", "take", "concat", "total"])
        if kind == "reshape":
            shape: tuple[int, ...] = (math.prod(t.shape),) if len(t.shape) != 1 else (1, *t.shape)
            self.add("reshape", [v], {"shape": shape}, [dataclasses.replace(t, shape=shape)])
        elif kind == "transpose" and len(t.shape) > 1:
            self.add("transpose", [v], {}, [dataclasses.replace(t, shape=t.shape[::-1])])
        elif kind == "take" and t.shape and t.shape[0]:
            self.resized(v, self.rng.choice([1, 2, 3]))
        elif kind == "concat" and t.shape and 2 * math.prod(t.shape) <= _MOST_ELEMENTS:
            made = dataclasses.replace(t, shape=(2 * t.shape[0], *t.shape[1:]))
            self.add("concat", [v, v], {}, [made])
        elif kind == "total" and t.bound is not None and t.dtype != "bool" and not t.dtype.startswith("float8"):
            bound = t.bound * math.prod(t.shape)
            self.settle(self.add("total", [v], {}, [dataclasses.replace(t, shape=(), bound=bound, moved=False)])[0])

    def resized(self, v: int, length: int) -> int:
        """Its first axis with so many entries, some of them again or left out."""
        t = self.types[v]
        at = tuple(self.rng.randrange(t.shape[0]) for _ in range(length))
        return self.add("take", [v], {"at": at}, [dataclasses.replace(t, shape=(length, *t.shape[1:]))])[0]

    def _where(self) -> None:
        c = self.pick(lambda t: t.dtype == "bool")
        if c is None:
            return
        shape = self.types[c].shape
        x = self.pick(lambda t: t.shape == shape)
        assert x is not None
        t = self.types[x]
        y = self.pick(lambda u: u.shape == shape and u.dtype == t.dtype)
        assert y is not None
        u = self.types[y]
        bound = None if t.bound is None or u.bound is None else max(t.bound, u.bound)
        vary = self.vary({*self.types[c].vary, *t.vary, *u.vary})
        self.add("where", [c, x, y], {}, [Type(shape, t.dtype, vary, bound, t.moved and u.moved)])

    def _rank(self) -> None:
        axes = tuple(self.rng.sample(list(self.sizes), self.rng.randint(1, len(self.sizes))))
        self.add("rank", [], {"axes": axes}, [Type((), "int32", self.vary(axes))])

    # Statements with blocks.

    def nested(self) -> None:
        """One of them."""
        made = [
            self._call,
            self._scan,
            self._scan,
            self._branch,
            self._vmap,
            self._vmap,
            self._derivative,
            self._derivative,
        ]
        if "vjp" not in self.context.derivatives:
            made.append(self._while)
        self.rng.choice(made)()

    def _deeper(self, **changes: Any) -> Context:
        return dataclasses.replace(self.context, deep=self.context.deep + 1, **changes)

    def _some(self, suits: Any = lambda t: True, most: int = 3) -> list[int]:
        found = [self.pick(suits) for _ in range(self.rng.randint(1, most))]
        return list(dict.fromkeys(v for v in found if v is not None))

    def _inner(self, args: Sequence[int], context: Context, types: Sequence[Type] | None = None) -> Block:
        params = [self.new(t) for t in (types or [self.types[v] for v in args])]
        return self.block(params, context, self.rng.randint(1, 4))

    def _late(self, block: Block, most: int, suits: Any = lambda t: True) -> tuple[int, ...]:
        new = [v for s in block.statements for v in s.outs if suits(self.types[v])]
        return tuple(new[-most:]) or tuple(v for v in block.params if suits(self.types[v]))[:most]

    def _call(self) -> None:
        options = ["jit", "remat", "remat", "custom_jvp"]
        if not self.context.derivatives or self.context.derivatives[-1] == "vjp":
            options.append("custom_vjp")
        how = self.rng.choice(options)
        custom = how.startswith("custom")
        args = self._some(lambda t: is_float(t.dtype) and t.bound is not None) if custom else self._some()
        if not args:
            return
        # What is within is differentiated by its rule, in whichever way that is written.
        context = self._deeper(derivatives=(*self.context.derivatives, how[7:])) if custom else self._deeper()
        block = self._inner(args, context)
        results = self._late(block, 2, lambda t: not custom or is_float(t.dtype))
        params = {"how": how, "all": True} if how == "remat" and self.rng.random() < 0.5 else {"how": how}
        self.add("call", args, params, [self.types[v] for v in results], [dataclasses.replace(block, results=results)])

    def _carried(self) -> list[int]:
        return self._some(lambda t: t.bound is not None and t.bound <= 4 and 0 not in t.shape, 2)

    def _carry_type(self, v: int) -> Type:
        return dataclasses.replace(self.types[v], vary=tuple(self.sizes), bound=4.0, moved=False)

    def _looped(self, block: Block, count: int) -> tuple[Block, tuple[int, ...]]:
        """Values of the carried ones' types, and their bounds."""
        outer = self.statements, self.scope
        self.statements = list(block.statements)
        self.scope = [*block.params, *(v for s in block.statements for v in s.outs)]
        results = []
        for param in block.params[:count]:
            t = self.types[param]
            new = [v for s in self.statements for v in s.outs]
            fits = [v for v in new if (self.types[v].shape, self.types[v].dtype) == (t.shape, t.dtype)]
            v = self.rng.choice(fits) if fits else param
            u = self.types[v]
            if is_float(u.dtype) and (u.bound is None or u.bound > 4):
                if u.dtype.startswith(("complex", "float8")):
                    v = param
                else:
                    made = dataclasses.replace(u, bound=1.0, moved=False)
                    v = self.add("unary", [v], {"f": "tanh"}, [made])[0]
            results.append(v)
        block = dataclasses.replace(block, statements=tuple(self.statements))
        self.statements, self.scope = outer
        return block, tuple(results)

    def _scan(self) -> None:
        carried = self._carried()
        if not carried:
            return
        how = self.rng.choice(["scan", "scan", "fori"])
        length, slices = self.rng.randint(1, 3), []
        if how == "scan":
            first = self.pick(lambda t: bool(t.shape) and 0 < t.shape[0] <= 4)
            if first is not None:
                length = self.types[first].shape[0]
                slices = [first]
        constants = self._some() if self.rng.random() < 0.5 else []
        types = [self._carry_type(v) for v in carried]
        types += [dataclasses.replace(self.types[v], shape=self.types[v].shape[1:]) for v in slices]
        types += [self.types[v] for v in constants]
        block, results = self._looped(self._inner([], self._deeper(), types), len(carried))
        stacked = self._late(block, 2) if how == "scan" else ()
        params = {"how": how, "carried": len(carried), "slices": len(slices), "length": length}
        if how == "scan":
            params |= {"reverse": self.rng.random() < 0.3, "unroll": self.rng.choice([1, 1, 1, 2])}
        everywhere = [self._everywhere(self.types[v]) for v in stacked]
        made = [self._carry_type(v) for v in carried]
        made += [dataclasses.replace(t, shape=(length, *t.shape)) for t in everywhere]
        block = dataclasses.replace(block, results=(*results, *stacked))
        self.add("scan", [*carried, *slices, *constants], params, made, [block])

    def uniform(self, below: int) -> int:
        """An integer that is the same on all ranks."""
        v = self.pick(lambda t: t.dtype == "int32")
        if v is None:
            self._rank()
            v = self.scope[-1]
        if self.types[v].shape:
            one = dataclasses.replace(self.types[v], shape=())
            v = self.add("total", [v], {}, [dataclasses.replace(one, moved=False)])[0]
        axes = tuple(self.sizes)
        params = {"name": "all_reduce", "axes": axes, "op": self.rng.choice(["max", "sum", "xor"])}
        params["ranks"] = math.prod(self.sizes.values())
        v = self.add("collective", [v], params, [Type((), "int32", self.vary(()))])[0]
        return self.add("unary", [v], {"f": "mod", "n": below}, [Type((), "int32", self.vary(()))])[0]

    def _while(self) -> None:
        carried = self._carried()
        if not carried:
            return
        constants = self._some() if self.rng.random() < 0.5 else []
        limit = self.uniform(4)
        types = [*(self._carry_type(v) for v in carried), *(self.types[v] for v in constants)]
        block, results = self._looped(self._inner([], self._deeper(), types), len(carried))
        made = [self._carry_type(v) for v in carried]
        block = dataclasses.replace(block, results=results)
        self.add("while", [limit, *carried, *constants], {"carried": len(carried)}, made, [block])

    def _branch(self) -> None:
        args = self._some(lambda t: 0 not in t.shape)
        if not args:
            return
        count = self.rng.choice([2, 2, 3])
        index = self.uniform(count)
        wanted = [self.types[v] for v in args[:2]]
        blocks, made = [], [dataclasses.replace(self._everywhere(t), moved=True, bound=0.0) for t in wanted]
        for _ in range(count):
            block = self._inner(args, self._deeper())
            results = []
            for i, t in enumerate(wanted):
                fits = [
                    v for v in self._late(block, 9) if (self.types[v].shape, self.types[v].dtype) == (t.shape, t.dtype)
                ]
                v = self.rng.choice(fits) if fits else block.params[i]
                u, old = self.types[v], made[i]
                bound = None if u.bound is None or old.bound is None else max(u.bound, old.bound)
                made[i] = dataclasses.replace(old, bound=bound, moved=old.moved and u.moved)
                results.append(v)
            blocks.append(dataclasses.replace(block, results=tuple(results)))
        how = "cond" if count == 2 and self.rng.random() < 0.7 else "switch"
        self.add("branch", [index, *args], {"how": how}, made, blocks)

    def _vmap(self) -> None:
        first = self.pick(lambda t: bool(t.shape) and 1 <= t.shape[0] <= 4)
        if first is None:
            return
        size = self.types[first].shape[0]
        args = list(dict.fromkeys([first, *self._some()]))
        mapped = tuple(
            i for i, v in enumerate(args) if self.types[v].shape[:1] == (size,) and (i == 0 or self.rng.random() < 0.7)
        )
        # With types, JAX refuses much that is over named axes of jax.vmap.
        axis = f"v{self.context.deep}" if self.rng.random() < (0.1 if self.check_vma else 0.5) else None
        types = [
            dataclasses.replace(self.types[v], shape=self.types[v].shape[1:]) if i in mapped else self.types[v]
            for i, v in enumerate(args)
        ]
        vmaps = self.context.vmaps + (((axis, size),) if axis else ())
        block = self._inner([], self._deeper(vmaps=vmaps, batched=True), types)
        results = self._late(block, 2)
        made = [dataclasses.replace(self.types[v], shape=(size, *self.types[v].shape)) for v in results]
        params = {"axis": axis, "size": size, "mapped": mapped}
        self.add("vmap", args, params, made, [dataclasses.replace(block, results=results)])

    def _derivative(self) -> None:
        kind = self.rng.choice(["vjp", "vjp", "jvp"])
        around = self.context.derivatives
        if len(around) > 1:
            return
        most = 3 if around else 8
        named = math.prod(size for _, size in self.context.vmaps)

        def suits(t: Type) -> bool:
            return (
                is_float(t.dtype)
                and t.bound is not None
                and 0 < math.prod(t.shape) * named <= most
                and t.dtype[:6] != "float8"
            )

        args = self._some(suits, 1 if around else 2)
        if not args:
            return
        if self.rng.random() < 0.3:
            args += self._some(lambda t: not is_float(t.dtype), 1)
        block = self._inner(args, self._deeper(derivatives=(*around, kind)))
        results = self._late(block, 2, lambda t: is_float(t.dtype) and t.dtype[:6] != "float8")
        ys = [self.types[v] for v in results]
        floats = [self.types[v] for v in args if is_float(self.types[v].dtype)]
        made = ys + [dataclasses.replace(t, bound=None, moved=False) for t in (floats if kind == "vjp" else ys)]
        params: dict[str, Any] = {}
        if kind == "vjp":
            params = {"vary_in": [self.types[v].vary for v in args], "vary_out": [t.vary for t in ys]}
        self.add(kind, args, params, made, [dataclasses.replace(block, results=results)])


def inputs(program: Program) -> list[np.ndarray]:
    """Data for it, ``[shards, *shape]`` each, of its dtype."""
    rng = np.random.default_rng(program.seed)
    found = []
    for t in program.inputs:
        shards = math.prod(program.sizes[name] for name in t.vary)
        shape = (*((2,) if program.outer == "vmap" else ()), shards, *t.shape)
        dtype = np.dtype(t.dtype)
        if t.dtype == "bool":
            x = rng.integers(0, 2, shape).astype(bool)
        elif not is_float(t.dtype):
            info = np.iinfo(dtype)
            x = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            x = np.where(rng.random(shape) < 0.5, x, rng.integers(0, 9, shape).astype(dtype))
        else:
            x = rng.uniform(0.2, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
            if t.dtype.startswith("complex"):
                x = (x + 1j * rng.uniform(-1, 1, shape)) / 2
            x = x.astype(dtype)
            if t.bound is None:
                special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]).astype(dtype)
                x = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), x)
        found.append(x)
    return found
