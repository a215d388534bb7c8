"""Blocks of random programs, and statements that hold blocks: calls, loops, branches, `jax.vmap` and derivatives."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from tests.random.rnd_collectives import Collectives
from tests.random.rnd_program import Block, Type, is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.random.rnd_scope import Context


class Nested(Collectives):
    """The part of the generator that makes them."""

    def block(self, params: Sequence[int], context: Context, length: int) -> Block:
        """Statements after parameters; the results are the caller's to choose."""
        outer = self.statements, self.scope, self.context
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
        everywhere = [self.everywhere(self.types[v]) for v in stacked]
        made = [self._carry_type(v) for v in carried]
        made += [dataclasses.replace(t, shape=(length, *t.shape)) for t in everywhere]
        block = dataclasses.replace(block, results=(*results, *stacked))
        self.add("scan", [*carried, *slices, *constants], params, made, [block])

    def uniform(self, below: int) -> int:
        """An integer that is the same on all ranks."""
        v = self.pick(lambda t: t.dtype == "int32")
        if v is None:
            self.rank()
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
        blocks, made = [], [dataclasses.replace(self.everywhere(t), moved=True, bound=0.0) for t in wanted]
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
