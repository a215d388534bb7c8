"""Collectives, and statements that hold blocks, in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.random.rnd_dual import Dual, depth, jointly, lift, linear, plain, scale
from tests.random.rnd_numpy_local import Local, Value
from tests.random.rnd_ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.random.rnd_program import Block, Statement


class Blocks(Local):
    """The part of the evaluation that does them."""

    def block(self, block: Block, args: Sequence[Value]) -> list[Value]:
        """A call of a block."""
        env = dict(zip(block.params, args, strict=True))
        for statement in block.statements:
            outs = getattr(self, f"do_{statement.kind}")(statement, [env[a] for a in statement.args])
            env.update(zip(statement.outs, outs, strict=True))
        return [env[i] for i in block.results]

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
            rounds = op in ("sum", "prod", "mean")
            if rounds:
                # Where terms cancel, the error of the sum is as large as theirs and not as the sum's.
                data = self.rounded(data, dtype, ranks.size).data
            data = ranks.reduce(data, op)
            if rounds:
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
            Value(self.joined(np.stack, list(column)), dtype)
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
