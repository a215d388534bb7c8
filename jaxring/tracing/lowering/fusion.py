"""Fuses neighbouring collectives of a program into one custom call: a pytree costs one call, not one per leaf.

Each leaf remains an operation of its own in the engine, with its own plan, so fusing changes no bit of a result. It
saves XLA's cost of a call: a step of its program, a future and a hand-over between threads on every device.

Fusion happens while a program is lowered, so it works for everything that binds the primitives: pytrees, loops over
layers, and `jax.lax` under `jaxring.install`. When a call is lowered behind another one, does not need its result, and
nothing between them takes time, it is emitted again with the operands of both, and the earlier call is erased.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from jaxring.settings import settings
from jaxring.tracing.lowering.per_thread import PerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

# Operations that take next to no time: fusing over them hardly delays a collective.
_QUICK = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "negate", "select", "compare", "convert", "constant"),
        *("broadcast_in_dim", "reshape", "transpose", "partition_id"),
    )
)
_MOST_LEAVES = 128
# Operations that are looked at, for each leaf: what is made of its result, and the next one's operand.
_MOST_BETWEEN = 8


class Leaf(NamedTuple):
    """One collective of a call: its operand, the types of operand and result, and its specification for the engine."""

    operand: Any
    aval_in: Any
    aval_out: Any
    spec: str
    nbytes: int
    aliased: bool  # the result may take the operand's memory


class _FusedCall(NamedTuple):
    """The call that was emitted last, with which others may still be fused."""

    module: Any
    key: Hashable
    call: Any
    leaves: tuple[Leaf, ...]
    stand_ins: tuple[Any, ...]  # what the rest of the program uses in place of the call's results


class _Thread(threading.local):
    apart: bool = False


_thread = _Thread()
_last: PerThread[_FusedCall | None] = PerThread(None)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within this context every collective is a call of its own."""
    former, _thread.apart = _thread.apart, True
    try:
        yield
    finally:
        _thread.apart = former


def emit(module: Any, key: Hashable, leaf: Leaf, build: Callable[[Sequence[Leaf]], Sequence[Any]]) -> Any:
    """The result of a collective, which shares a call with those before it that have an equal ``key``.

    ``build`` emits a call for the leaves that it is given and returns their results.
    """
    if _thread.apart or leaf.nbytes > settings().fusion_bytes:
        return build([leaf])[0]
    last = _last.get()
    behind = _what_follows(last, module, key, leaf) if last is not None else None
    if last is None or behind is None:
        last, behind = _FusedCall(module, key, None, (), ()), []
    leaves = (*last.leaves, leaf)
    *earlier, result = build(leaves)
    call = result.owner.operation
    for stand_in, value in zip(last.stand_ins, earlier, strict=True):
        stand_in.operands[0] = value
    for former, operation in itertools.pairwise([call, *behind]):
        operation.move_after(former)
    if last.call is not None:
        partition = last.call.operands[-1].owner.operation
        last.call.erase()
        partition.erase()
    # A reshape to the same shape is nothing to XLA. Values cannot be exchanged once JAX has them, operands can.
    stand_in = hlo.reshape(result.type, result)
    _last.set(_FusedCall(module, key, call, leaves, (*last.stand_ins, stand_in.owner.operation)))
    return stand_in


def _what_follows(last: _FusedCall, module: Any, key: Hashable, leaf: Leaf) -> list[Any] | None:
    """The operations on the results of ``last``, if ``leaf`` may be fused with it; None if it may not."""
    # The module is compared first: another one may be gone by now, and its operations with it.
    if last.module is not module or last.key != key or len(last.leaves) == _MOST_LEAVES:
        return None
    if sum(each.nbytes for each in last.leaves) + leaf.nbytes > settings().fusion_bytes:
        return None
    here = ir.InsertionPoint.current
    if here.ref_operation is not None or last.call.block != here.block:
        return None
    between = _back_to(last.call, here.block.operations, _MOST_BETWEEN * (len(last.leaves) + 1))
    if between is None:
        return None
    dependent = {last.call}
    for operation in between:
        if any(operand.owner in dependent for operand in operation.operands):
            dependent.add(operation)
    if leaf.operand.owner in dependent:
        return None
    return [operation for operation in between if operation in dependent]


def _back_to(call: Any, operations: Any, most: int) -> list[Any] | None:
    """The last operations of a block, behind ``call``; None if one of them takes time, or there are too many."""
    found: list[Any] = []
    for back in range(1, min(len(operations), most) + 1):
        operation = operations[-back].operation
        if operation == call:
            return found[::-1]
        if operation.name not in _QUICK:
            return None
        found.append(operation)
    return None
