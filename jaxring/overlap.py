"""Nonblocking collectives: begin one, compute something else, then take its result.

On CPU the collective is an asynchronous custom call: XLA continues with the operations that do not need its result.
`Handle.done` adds the place in the program where the result is taken; its docstring says how XLA treats it.

On GPUs (experimental: it has run on one GPU only) XLA treats a custom call as done when its stream reaches the next
operation. A collective that is started runs on a separate stream, and XLA does not know that its result is not there
yet, so only a done may use it. Operations on the result (a transposition, for example) are kept in the handle until
then, and a handle that leaves its trace is done there. The collective is moved to the other stream only where its
result goes straight into the done.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from jaxring import _compat, collectives, rooted
from jaxring.runtime.call import CallSpec
from jaxring.runtime.service import DONE, JOIN, STARTS
from jaxring.tracing.calls import Started, starting
from jaxring.tracing.primitives import define

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tree = TypeVar("Tree")
P = ParamSpec("P")


@jax.tree_util.register_pytree_node_class
class Handle(Generic[Tree]):
    """A collective that has been started: a pytree of its result, which may be returned, carried and differentiated.

    Made by `all_reduce_start` and kin; take the result with `done`.
    """

    def __init__(self, value: Any, operands: Any = ()) -> None:
        # Leaves are `Started` until the first done in the trace of the start.
        self._value, self._operands = value, operands
        self._trace, self._untouched = _compat.trace_state(), True

    @overload
    def done(self) -> Tree: ...
    @overload
    def done(self, first: Any, /, *compute: Any) -> tuple[Tree, *tuple[Any, ...]]: ...
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

        On GPUs (experimental: it has run on one GPU only) the collective runs beside what XLA places between the start
        and the done. Where the done is in another trace than the start (in a loop's body, say), and where mesh axes are
        left to the partitioner, it does not; nor does a reduction whose epilogue has states.

        Args:
            *compute: Pytrees of arrays, which are computed while the collective travels.

        Returns:
            The collective's result, or a tuple of it and the pytrees.

        Raises:
            jax.errors.JaxRuntimeError: When the program runs: the collective has failed.

        Examples:
            Inside `jax.shard_map` over a mesh with an axis "data":

                handle = jaxring.all_gather_start(weights, "data", tiled=True)
                whole, y = handle.done(layer(x))
        """
        parts, shape = jax.tree.flatten(self._value, is_leaf=_is_started)
        pending = [part.value for part in parts if _is_started(part)]
        whole = [part for part in parts if not _is_started(part)]
        given, tree = jax.tree.flatten(compute)
        here = self._trace == _compat.trace_state()
        alone = len(pending) if here and self._untouched else 0
        self._untouched = False
        values = iter(_done([*pending, *whole, *given], jax.tree.leaves(self._operands), alone))
        ready, others = ([next(values) for _ in few] for few in (pending, whole))
        done = [part.finish(ready.pop(0)) if _is_started(part) else others.pop(0) for part in parts]
        result = jax.tree.unflatten(shape, done)
        if here:
            self._value = result  # a second done must not touch what the first one waited for
        return (result, *jax.tree.unflatten(tree, list(values))) if compute else result

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        """The result is the only child, and done: operands need not be kept where the handle leaves its trace."""
        started = any(map(_is_started, jax.tree.leaves(self._value, is_leaf=_is_started)))
        return (self.done() if started else self._value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Tree]) -> Handle[Tree]:
        """A handle of another result."""
        return cls(children[0])


_RETURNS = "Returns:\n    A `jaxring.Handle`, whose `done` gives the result, wherever that is needed first."


def _section(documentation: str, title: str) -> str:
    """One section of a docstring: its title, and the indented lines behind it."""
    found = re.search(rf"^{title}:\n(?:[ ].*\n|\n)*", documentation + "\n", re.MULTILINE)
    return found[0].rstrip() if found else ""


def _started(function: Callable[P, Tree], name: str) -> Callable[P, Handle[Tree]]:
    def start(*args: P.args, **kwargs: P.kwargs) -> Handle[Tree]:
        with starting():
            value = function(*args, **kwargs)
        return Handle(value, args[0] if args else kwargs["x"])

    start.__name__ = start.__qualname__ = f"{name}_start"
    documentation = inspect.getdoc(function) or ""
    parts = [f"Starts `jaxring.{name}`.", _section(documentation, "Args"), _RETURNS, _section(documentation, "Raises")]
    start.__doc__ = "\n\n".join(filter(None, parts))
    shown: Any = start
    signature = inspect.signature(function)
    shown.__signature__ = signature.replace(return_annotation=f"Handle[{signature.return_annotation}]")
    return start


all_reduce_start = _started(collectives.all_reduce, "all_reduce")
all_gather_start = _started(collectives.all_gather, "all_gather")
reduce_scatter_start = _started(collectives.reduce_scatter, "reduce_scatter")
all_to_all_start = _started(collectives.all_to_all, "all_to_all")
permute_start = _started(collectives.permute, "permute")
broadcast_start = _started(rooted.broadcast, "broadcast")


def _is_started(x: Any) -> bool:
    return isinstance(x, Started)


# Operands: n values that are passed through, then others that must stay in memory until then. The first ``alone`` are
# collectives' results that nothing else uses.
done_p = Primitive("jaxring_done")
done_p.multiple_results = True


def _done(values: list[Any], operands: list[Any], alone: int) -> list[Any]:
    traced = [i for i, v in enumerate(values) if isinstance(v, jax.core.Tracer) and not _extended(v)]
    if not traced:  # reading an eager array waits for it
        return values
    mesh = jax.sharding.get_abstract_mesh()
    if set(mesh.axis_names) - set(mesh.manual_axes):
        # A custom call would be replicated over the axes that are left to the partitioner.
        made = jax.lax.optimization_barrier([values[i] for i in traced])  # type: ignore[no-untyped-call]
    else:
        kept = [v for v in operands if isinstance(v, jax.core.Tracer) and not _extended(v)]
        given = [*(values[i] for i in traced), *kept]
        made = done_p.bind(*given, n=len(traced), alone=sum(i < alone for i in traced))  # type: ignore[no-untyped-call]
    values = list(values)
    for i, v in zip(traced, made, strict=True):
        values[i] = v
    return values


def _extended(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.extended))


def _lower(ctx: Any, *args: Any, n: int, alone: int) -> Any:
    del alone
    # XLA makes one partition id of all, so this one keeps alive the collectives' own.
    ctx = ctx.replace(avals_in=[*ctx.avals_in, jax.core.ShapedArray((), "uint32")])
    rule = jax.ffi.ffi_lowering(DONE, operand_output_aliases={i: i for i in range(n)})
    return rule(ctx, *args, hlo.partition_id())


def lower_on_gpu(ctx: Any, *args: Any, n: int, alone: int) -> Any:
    """Puts the collectives that were started on another stream, and waits for it."""
    started = [i for i in range(alone) if _start_on_side_stream(args[i])]
    if not started:
        return _lower(ctx, *args, n=n, alone=alone)
    # The collectives' own operands, which may be other values than the caller's.
    kept = [operand for i in started for operand in args[i].owner.operands]
    # Only the number of dimensions of these is looked at, for the layout.
    avals = [jax.core.ShapedArray(tuple(operand.type.shape), np.dtype(np.uint8)) for operand in kept]
    ctx = ctx.replace(avals_in=[*ctx.avals_in, *avals])
    rule = jax.ffi.ffi_lowering(JOIN, operand_output_aliases={i: i for i in range(n)}, has_side_effect=True)
    return rule(ctx, *args, *kept, started=np.array(started, np.int64))


def _start_on_side_stream(value: Any) -> bool:
    """Gives the collective that makes ``value`` a stream of its own, if it is one that was started."""
    made = value.owner
    if not isinstance(made, (ir.Operation, ir.OpView)) or made.operation.name != "stablehlo.custom_call":
        return False
    # Before any other attribute: those of other people's calls may be of kinds that jaxlib cannot make an object of.
    target = ir.StringAttr(made.attributes["call_target_name"]).value
    if target not in STARTS:
        return False
    config = ir.DictAttr(made.attributes["mhlo.backend_config"])
    if not ir.BoolAttr(config["started"]).value:
        return False
    # Launches on a communicator have one order, so it needs another one than its like on XLA's stream.
    spec = dataclasses.replace(CallSpec.from_json(ir.StringAttr(config["spec"]).value), started=True)
    named = {entry.name: entry.attr for entry in (config[i] for i in range(len(config)))}
    named["spec"] = ir.StringAttr.get(spec.to_json())
    made.attributes["mhlo.backend_config"] = ir.DictAttr.get(named)
    made.attributes["call_target_name"] = ir.StringAttr.get(STARTS[target])
    # XLA is to leave it where it is: it must not be merged, moved out of a loop or left out.
    made.attributes["has_side_effect"] = ir.BoolAttr.get(True)
    if "output_operand_aliases" in made.attributes:
        del made.attributes["output_operand_aliases"]  # the operand stays until the done
    return True


def _jvp(primals: Any, tangents: Any, *, n: int, alone: int) -> Any:
    out = done_p.bind(*primals, n=n, alone=alone)  # type: ignore[no-untyped-call]
    moving = [i for i in range(n) if type(tangents[i]) is not ad.Zero]
    tangents_out = list(tangents[:n])
    if moving:
        given, alone = [tangents[i] for i in moving], sum(i < alone for i in moving)
        made = done_p.bind(*given, n=len(moving), alone=alone)  # type: ignore[no-untyped-call]
        for i, t in zip(moving, made, strict=True):
            tangents_out[i] = t
    return out, tangents_out


def _transpose(cotangents: Any, *primals: Any, n: int, alone: int) -> Any:
    del alone
    return [*cotangents, *(None for _ in primals[n:])]


def _batch(args: Any, dims: Any, *, n: int, alone: int) -> Any:
    return done_p.bind(*args, n=n, alone=alone), dims[:n]  # type: ignore[no-untyped-call]


def _abstract(*avals: Any, n: int, alone: int) -> list[Any]:
    del alone
    return list(avals[:n])


define(done_p, _abstract)
mlir.register_lowering(done_p, _lower, platform="cpu")
mlir.register_lowering(done_p, lower_on_gpu, platform="cuda", cacheable=False)
ad.primitive_jvps[done_p] = _jvp
ad.primitive_transposes[done_p] = _transpose
batching.primitive_batchers[done_p] = _batch
