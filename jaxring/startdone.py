"""Collectives in two halves: begin one, compute something else, then take its result.

The collective is an asynchronous custom call: XLA goes on with whatever does not need its result. What `Handle.done`
adds is a place in the program: see there for what XLA makes of it on CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from jaxring import collectives
from jaxring.primitives import define
from jaxring.runtime.service import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tree = TypeVar("Tree")
P = ParamSpec("P")


@jax.tree_util.register_pytree_node_class
class Handle(Generic[Tree]):
    """A collective that has been started: a pytree of its result, which may be returned, carried and differentiated.

    Made by `all_reduce_start` and kin; take the result with `done`.
    """

    def __init__(self, value: Tree, operands: Any = ()) -> None:
        self._value, self._operands = value, operands

    def done(self, *compute: Any) -> Any:
        """The result; with arguments, ``(result, *arguments)``: pytrees to be computed before it is waited for.

        On CPU the transfer overlaps with an argument's computation if XLA

        * runs the program's steps concurrently. It runs a program (or loop body) of eight steps or fewer, or whose
          arrays all have at most 512 bytes, one step after another and waits for each. Then nothing overlaps;
        * reaches the start first. Make the computation depend on what the collective's operand depends on, as the
          rest of a backward pass does; otherwise XLA may run it before.

        What is passed here is computed as a step of its own, in memory that the transfer does not use. What is not
        passed may still overlap, but XLA may fuse it into what uses the result, schedule it behind, or give it memory
        that is free only after the transfer; each makes it wait. Values of regions that leave mesh axes to the
        partitioner are only kept together by `jax.lax.optimization_barrier`, which does not hold on CPU.
        """
        values, tree = jax.tree.flatten((self._value, *compute))
        operands = jax.tree.leaves(self._operands)
        result = jax.tree.unflatten(tree, _done(values, operands))
        return result if compute else result[0]

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        """The result is the only child: operands need not be kept where the handle leaves its trace."""
        return (self._value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Tree]) -> Handle[Tree]:
        """A handle of another result."""
        return cls(children[0])


def _started(function: Callable[P, Tree], name: str) -> Callable[P, Handle[Tree]]:
    def start(*args: P.args, **kwargs: P.kwargs) -> Handle[Tree]:
        return Handle(function(*args, **kwargs), args[0] if args else kwargs["x"])

    start.__name__ = start.__qualname__ = f"{name}_start"
    start.__doc__ = f"Starts `jaxring.{name}`, whose arguments it takes; `Handle.done` gives the result."
    return start


all_reduce_start = _started(collectives.all_reduce, "all_reduce")
all_gather_start = _started(collectives.all_gather, "all_gather")
reduce_scatter_start = _started(collectives.reduce_scatter, "reduce_scatter")
all_to_all_start = _started(collectives.all_to_all, "all_to_all")
permute_start = _started(collectives.permute, "permute")
broadcast_start = _started(collectives.broadcast, "broadcast")


# Operands: n values that are passed through, then others that must stay in memory until then.
done_p = Primitive("jaxring_done")
done_p.multiple_results = True


def _done(values: list[Any], operands: list[Any]) -> list[Any]:
    traced = [i for i, v in enumerate(values) if isinstance(v, jax.core.Tracer) and not _extended(v)]
    if not traced:  # eager arrays are waited for by whoever reads them
        return values
    mesh = jax.sharding.get_abstract_mesh()
    if set(mesh.axis_names) - set(mesh.manual_axes):
        # A custom call would be replicated over the axes that are left to the partitioner.
        made = jax.lax.optimization_barrier([values[i] for i in traced])  # type: ignore[no-untyped-call]
    else:
        kept = [v for v in operands if isinstance(v, jax.core.Tracer) and not _extended(v)]
        made = done_p.bind(*(values[i] for i in traced), *kept, n=len(traced))  # type: ignore[no-untyped-call]
    values = list(values)
    for i, v in zip(traced, made, strict=True):
        values[i] = v
    return values


def _extended(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.extended))


def _lower(ctx: Any, *args: Any, n: int) -> Any:
    # XLA makes one partition id of all, so this one keeps alive the collectives' own.
    ctx = ctx.replace(avals_in=[*ctx.avals_in, jax.core.ShapedArray((), "uint32")])
    rule = jax.ffi.ffi_lowering(DONE, operand_output_aliases={i: i for i in range(n)})
    return rule(ctx, *args, hlo.partition_id())


def _jvp(primals: Any, tangents: Any, *, n: int) -> Any:
    out = done_p.bind(*primals, n=n)  # type: ignore[no-untyped-call]
    moving = [i for i in range(n) if type(tangents[i]) is not ad.Zero]
    tangents_out = list(tangents[:n])
    if moving:
        made = done_p.bind(*(tangents[i] for i in moving), n=len(moving))  # type: ignore[no-untyped-call]
        for i, t in zip(moving, made, strict=True):
            tangents_out[i] = t
    return out, tangents_out


def _transpose(cotangents: Any, *primals: Any, n: int) -> Any:
    return [*cotangents, *(None for _ in primals[n:])]


def _batch(args: Any, dims: Any, *, n: int) -> Any:
    return done_p.bind(*args, n=n), dims[:n]  # type: ignore[no-untyped-call]


define(done_p, lambda *avals, n: list(avals[:n]))
mlir.register_lowering(done_p, _lower, platform="cpu")
mlir.register_lowering(done_p, _lower, platform="cuda")
ad.primitive_jvps[done_p] = _jvp
ad.primitive_transposes[done_p] = _transpose
batching.primitive_batchers[done_p] = _batch
