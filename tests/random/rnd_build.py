"""A random program as a JAX function."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.random.rnd_program import OFFSET, SLOPE, is_float

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.random.rnd_program import Block, Program, Statement


def mesh(program: Program, devices: Sequence[Any]) -> Mesh:
    """Its mesh."""
    import numpy as np

    order = np.empty(len(program.order), object)
    for i, at in enumerate(program.order):
        order[i] = devices[at]
    return Mesh(order.reshape([size for _, size in program.axes]), tuple(name for name, _ in program.axes))


def spec(vary: Sequence[str]) -> P:
    """Of a value with an axis of shards in front."""
    return P(tuple(vary)) if vary else P(None)


def function(program: Program, over: Mesh, ops: Any) -> Callable[..., list[Any]]:
    """Of the inputs as they are on all ranks, ``[shards, *shape]``; gives the outputs likewise."""
    builder = Builder(program, ops)
    outputs = program.outputs
    if program.outer in ("vjp", "jvp"):
        outputs = outputs[: len(program.body.results)]

    def local(*args: Any) -> list[Any]:
        return [y[None] for y in builder.block(program.body, [x[0] for x in args])]

    mapped = jax.shard_map(
        local,
        mesh=over,
        in_specs=tuple(spec(each.vary) for each in program.inputs),
        out_specs=[spec(each.vary) for each in outputs],
        axis_names=set(program.manual),
        check_vma=program.check_vma,
    )
    if program.outer == "vjp":
        return functools.partial(_vjp, mapped)
    if program.outer == "jvp":
        return functools.partial(_jvp, mapped)
    if program.outer == "vmap":
        return jax.vmap(mapped)
    return jax.checkpoint(mapped) if program.outer == "remat" else mapped


def _other(x: Any) -> Any:
    """A tangent or cotangent made of a value."""
    return x * jnp.asarray(SLOPE, x.dtype) + jnp.asarray(OFFSET, x.dtype)


def _differentiable(f: Any, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    at = [i for i, x in enumerate(args) if is_float(x.dtype.name)]

    def of(*some: Any) -> list[Any]:
        every = list(args)
        for i, x in zip(at, some, strict=True):
            every[i] = x
        return list(f(*every))

    return of, [args[i] for i in at]


def _vjp(f: Any, *args: Any) -> list[Any]:
    of, floats = _differentiable(f, args)
    ys, pull = jax.vjp(of, *floats)
    return [*ys, *pull([_other(y) for y in ys])]


def _jvp(f: Any, *args: Any) -> list[Any]:
    of, floats = _differentiable(f, args)
    ys, tangents = jax.jvp(of, floats, [_other(x) for x in floats])
    return [*ys, *tangents]


class Builder:
    """Makes a program's blocks with the collectives of ``ops``."""

    def __init__(self, program: Program, ops: Any) -> None:
        self.program, self.ops = program, ops

    def block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        env = dict(zip(block.params, args, strict=True))
        for statement in block.statements:
            outs = getattr(self, f"do_{statement.kind}")(statement, [env[a] for a in statement.args])
            env.update(zip(statement.outs, outs, strict=True))
        return [env[i] for i in block.results]

    def varying(self, x: Any) -> Any:
        """Typed as varying over all manual axes."""
        if not self.program.check_vma:
            return x
        missing = tuple(name for name in self.program.manual if name not in jax.typeof(x).manual_axis_type.varying)
        return self.ops.pcast(x, missing) if missing else x

    def varied(self, xs: Sequence[Any]) -> list[Any]:
        return [self.varying(x) for x in xs]

    def do_unary(self, s: Statement, args: list[Any]) -> list[Any]:
        (x,) = args
        functions = {"sin": jnp.sin, "tanh": jnp.tanh, "neg": jnp.negative, "conj": jnp.conj, "not": jnp.invert}
        if s.params["f"] == "scale":
            return [x * jnp.asarray(s.params["factor"], x.dtype)]
        if s.params["f"] == "mod":
            return [jnp.mod(x, jnp.asarray(s.params["n"], x.dtype))]
        return [functions[s.params["f"]](x)]

    def do_binary(self, s: Statement, args: list[Any]) -> list[Any]:
        functions: dict[str, Any] = {
            "add": lax.add,
            "sub": lax.sub,
            "mul": lax.mul,
            "less": lax.lt,
            "and": lax.bitwise_and,
            "or": lax.bitwise_or,
            "xor": lax.bitwise_xor,
        }
        return [functions[s.params["f"]](*args)]

    def do_where(self, s: Statement, args: list[Any]) -> list[Any]:
        return [jnp.where(*args)]

    def do_cast(self, s: Statement, args: list[Any]) -> list[Any]:
        (x,), dtype = args, s.params["dtype"]
        if jnp.iscomplexobj(x) and not dtype.startswith("complex"):
            x = x.real
        if is_float(dtype) and not is_float(x.dtype.name) and x.dtype != bool:
            x = x & jnp.asarray(7, x.dtype)
        return [x.astype(dtype)]

    def do_reshape(self, s: Statement, args: list[Any]) -> list[Any]:
        return [args[0].reshape(s.params["shape"])]

    def do_transpose(self, s: Statement, args: list[Any]) -> list[Any]:
        return [args[0].T]

    def do_take(self, s: Statement, args: list[Any]) -> list[Any]:
        return [lax.concatenate([args[0][i : i + 1] for i in s.params["at"]], 0)]

    def do_concat(self, s: Statement, args: list[Any]) -> list[Any]:
        return [lax.concatenate(args, 0)]

    def do_total(self, s: Statement, args: list[Any]) -> list[Any]:
        return [jnp.sum(args[0], dtype=args[0].dtype)]

    def do_rank(self, s: Statement, args: list[Any]) -> list[Any]:
        return [jnp.asarray(lax.axis_index(s.params["axes"]), jnp.int32)]

    def do_collective(self, s: Statement, args: list[Any]) -> list[Any]:
        if s.params.get("stopped"):
            args = [lax.stop_gradient(x) for x in args]
        return self.ops.collective(s.params, args)

    def do_call(self, s: Statement, args: list[Any]) -> list[Any]:
        body = s.blocks[0]

        def f(*xs: Any) -> list[Any]:
            return self.block(body, xs)

        how = s.params["how"]
        if how == "jit":
            return jax.jit(f)(*args)
        if how == "remat":
            return jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable if s.params.get("all") else None)(
                *args
            )
        if how == "custom_jvp":
            g = jax.custom_jvp(f)

            @g.defjvp
            def _rule(primals: Any, tangents: Any) -> Any:
                ys, ts = jax.jvp(f, primals, tangents)
                return ys, [t * jnp.asarray(0.5, t.dtype) for t in ts]

            return g(*args)
        h = jax.custom_vjp(f)

        def forward(*xs: Any) -> Any:
            return f(*xs), xs

        def backward(xs: Any, cts: Any) -> Any:
            return tuple(ct * jnp.asarray(0.5, ct.dtype) for ct in jax.vjp(f, *xs)[1](cts))

        h.defvjp(forward, backward)
        return h(*args)

    def do_scan(self, s: Statement, args: list[Any]) -> list[Any]:
        p, body = s.params, s.blocks[0]
        carried, rest = self.varied(args[: p["carried"]]), args[p["carried"] :]
        slices, constants = rest[: p["slices"]], rest[p["slices"] :]
        if p["how"] == "fori":

            def step(_: Any, carry: Any) -> Any:
                return self.varied(self.block(body, [*carry, *constants]))

            return lax.fori_loop(0, p["length"], step, carried)

        def scanned(carry: Any, now: Any) -> Any:
            results = self.varied(self.block(body, [*carry, *now, *constants]))
            return results[: p["carried"]], results[p["carried"] :]

        options = {"reverse": p.get("reverse", False), "unroll": p.get("unroll", 1)}
        carry, stacked = lax.scan(scanned, carried, slices, length=p["length"], **options)
        return [*carry, *stacked]

    def do_while(self, s: Statement, args: list[Any]) -> list[Any]:
        count = s.params["carried"]
        limit, carried, constants = args[0], self.varied(args[1 : 1 + count]), args[1 + count :]
        start = self.varying(limit * 0)

        def more(state: Any) -> Any:
            return state[0] < limit

        def step(state: Any) -> Any:
            return (state[0] + 1, *self.varied(self.block(s.blocks[0], [*state[1:], *constants])))

        return list(lax.while_loop(more, step, (start, *carried))[1:])

    def do_branch(self, s: Statement, args: list[Any]) -> list[Any]:
        branches = [functools.partial(lambda b, *xs: self.varied(self.block(b, xs)), block) for block in s.blocks]
        if len(branches) == 2 and s.params["how"] == "cond":
            return lax.cond(args[0] == 0, *branches, *args[1:])
        return lax.switch(args[0], branches, *args[1:])

    def do_vmap(self, s: Statement, args: list[Any]) -> list[Any]:
        p = s.params
        axes = tuple(0 if i in p["mapped"] else None for i in range(len(args)))

        def f(*xs: Any) -> list[Any]:
            return self.block(s.blocks[0], xs)

        return jax.vmap(f, in_axes=axes, axis_name=p["axis"], axis_size=p["size"])(*args)

    def do_jvp(self, s: Statement, args: list[Any]) -> list[Any]:
        return _jvp(lambda *xs: self.block(s.blocks[0], xs), *args)

    def do_vjp(self, s: Statement, args: list[Any]) -> list[Any]:
        return _vjp(lambda *xs: self.block(s.blocks[0], xs), *args)
