"""JAXRING_CHECKSUM=oracle: every collective of a program is computed a second way, and what differs is an error; with
oracle:N each call's every Nth execution, from the first on.

The second way gathers the operands of all ranks by an all_gather, and puts the result together with NumPy on the host:
blocks that are moved bit for bit, reductions in twice the precision. So it shares neither the algorithm, nor the
arithmetic, nor the compiled code with the first one, but the links. It finds faults of compilers, of memory and of
processors, and costs a multiple of the collective in time and memory. What is left out: `jaxring.tracing.unchecked`.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxring.errors import JaxringError
from jaxring.plan.collectives import COLLECTIVES, Arguments, Folded, Moved
from jaxring.runtime.explain import note
from jaxring.settings import settings
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.primitives import apply
from jaxring.tracing.unchecked import Unchecked, of_call, sentence

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

logger = logging.getLogger("jaxring.runtime")

# Sums may round at each step, here by half a unit in the last place; and a mean's division and a narrow result once.
_ROUNDED_ONCE = 2.0


def _every() -> int:
    """One of so many executions of a call is checked; 0: none."""
    kind, _, every = settings().checksum.partition(":")
    return int(every or 1) if kind == "oracle" else 0


def leave_out(what: Unchecked, call: str, site: str) -> None:
    """Has `jaxring.explain` list a call that is not checked, and why. Does nothing where the oracle is off."""
    if _every():
        text = sentence(what, f"{call} at {site}")
        if note(text):
            logger.info("jaxring: %s", text)


def consult(name: str, x: Any, y: Any, axes: Axes, options: Options) -> None:
    """Where the oracle is on, has the program check ``y``, the result of the operand ``x``, or says why it does not."""
    if not _every():
        return
    why = of_call(name)
    if why is None and axes.vmapped:
        why = Unchecked.VMAPPED
    if why is None and options.started:
        why = Unchecked.STARTED
    if why is None:
        watch(name, x, y, axes, options)
    else:
        leave_out(why, name, options.site)


def watch(name: str, x: Any, y: Any, axes: Axes, options: Options) -> None:
    """Has the program compare ``y``, the result of the operand ``x``, with what the operands of all ranks make."""
    plain = options._replace(op=None, algorithm=None, protocol=None, root=0, perm=())
    rank = jax.lax.axis_index(axes.names)
    if axes.groups is not None:
        place = np.zeros(sum(map(len, axes.groups)), np.int32)
        for group in axes.groups:
            place[list(group)] = np.arange(len(group))
        rank = jnp.asarray(place)[rank]
    call = f"{name}{f' {options.op}' if options.op else ''} over {axes} ({options.site})"
    check = functools.partial(compare, name, call, options.op, Arguments(axes.size, options.root, options.perm))

    def checked(x: Any, y: Any, rank: Any) -> None:
        jax.debug.callback(check, apply("all_gather", x, axes, plain), y, rank)

    x, y = jax.lax.stop_gradient((x, y))
    every = _every()
    if every == 1:
        checked(x, y, rank)
        return
    # Counts by device, not by rank: devices that differ in other axes only have the same rank, and may share this
    # process. With a value of the result, so that XLA leaves it where the call is. Callbacks with effects are not
    # allowed in jax.checkpoint.
    manual = jax.sharding.get_abstract_mesh().manual_axes
    number = jax.pure_callback(
        _Executions(),
        jax.ShapeDtypeStruct((), np.int32),  # type: ignore[no-untyped-call]
        jax.lax.axis_index(tuple(name for name, _ in axes.mesh if name in manual)),
        y.ravel()[:1],
        vmap_method="sequential",
    )
    # All ranks must gather or none. Those of a process that has joined the job later have counted fewer.
    number = apply("all_reduce", cast_varying(number, axes, plain), axes, plain._replace(op="max"))
    jax.lax.cond(number % every == 0, checked, lambda *_: None, x, y, rank)


class _Executions:
    """How often each device of this process has executed one call of a program before.

    Of its own for each call that is traced: the leaves of a pytree and the calls of a loop have the same line, and with
    one count for all of them some would never be checked.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, device: Any, _: Any) -> Any:
        with self._lock:
            count = self._counts.get(int(device), 0)
            self._counts[int(device)] = (count + 1) % (1 << 31)
        return np.int32(count)


def compare(name: str, call: str, op: str | None, given: Arguments, operands: Any, y: Any, rank: Any) -> None:
    """Raises JaxringError where ``y`` is not what rank ``rank`` gets of these operands, one for each rank."""
    collective = COLLECTIVES[name]
    operands, result, rank = np.asarray(operands), np.asarray(y), int(rank)
    blocks = result if collective.blocks_out else result[None]
    for number, source in enumerate(collective.results(given, rank)):
        if isinstance(source, Folded):
            parts = operands[:, source.block] if collective.blocks_in else operands
            wrong, expected = _folded(str(op), parts, blocks[number])
        else:
            expected = np.zeros_like(blocks[number])
            if isinstance(source, Moved):
                moved = operands[source.rank]
                expected = moved[source.block] if collective.blocks_in else moved
            wrong = _bits(expected) != _bits(blocks[number])
        if not wrong.any():
            continue
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f"element {list(at)}" + (f" of block {number}" if collective.blocks_out else "")
        text = (
            f"JAXRING_CHECKSUM=oracle: {call}: {where} of rank {rank}'s result of shape {list(result.shape)} "
            f"{result.dtype} is {_shown(blocks[number], at)}, but the operands of all ranks make "
            f"{_shown(expected, at)}; {int(wrong.sum())} of {wrong.size} elements differ. A compiler, a memory or a "
            "processor is at fault, or jaxring."
        )
        logger.error("%s", text)
        raise JaxringError(text)


def _shown(values: Any, at: tuple[int, ...]) -> str:
    return str(np.asarray(values)[at])


def _bits(values: Any) -> Any:
    """Values that are equal where all bits are."""
    values = np.ascontiguousarray(values)
    return values.view(np.dtype(("V", values.dtype.itemsize))) if values.dtype.kind not in "biu" else values


def _folded(op: str, parts: Any, y: Any) -> tuple[Any, Any]:
    """Where ``y`` is not the reduction of these parts, and what that is."""
    ranks = len(parts)
    kind = np.dtype(y.dtype).kind
    if op in ("and", "or", "xor"):
        expected = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op].reduce(parts)
        return expected != y, expected
    if kind in "biu":
        expected = _integers(op, parts, y.dtype)
        return expected != y, expected
    wide = np.clongdouble if kind == "c" else np.longdouble
    with np.errstate(all="ignore"):
        exact = parts.astype(wide)
        reduce = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op].reduce
        expected = reduce(exact) / (ranks if op == "mean" else 1)
        narrow = np.finfo(y.dtype) if kind == "c" else ml_dtypes.finfo(y.dtype)  # type: ignore[no-untyped-call]
        size = np.abs(expected) if op == "prod" else np.abs(exact).sum(0)
        if op in ("min", "max"):
            bound = np.zeros_like(size)
        else:
            # Partial results are rounded in float32 at least, and a narrow result once.
            step = min(float(narrow.eps), float(np.finfo(np.float32).eps))
            once = _ROUNDED_ONCE * float(narrow.eps) * np.abs(expected)
            bound = ranks * step * size + once + ranks * float(narrow.smallest_normal)
        got = y.astype(wide)
        # Where a partial result may leave the range of its dtype, the order decides what comes out.
        sure = (size < float(narrow.max) / 2) & ~np.isnan(expected)
        if op == "prod":
            sure &= _products_in_range(np.abs(exact), y.dtype)
        wrong = sure & ~(np.abs(got - expected) <= bound)
        if op not in ("min", "max"):
            wrong |= np.isnan(exact).any(0) & ~np.isnan(got)
    return wrong, expected


def _products_in_range(sizes: Any, dtype: Any) -> Any:
    """Where the product of no subset of these magnitudes overflows or loses digits to underflow, zeros aside."""
    kept = np.finfo(np.float32 if dtype.itemsize < 4 else dtype)
    largest = np.maximum(sizes, 1).prod(0)
    least = np.where(sizes > 0, np.minimum(sizes, 1), 1).prod(0)
    return (largest < float(kept.max) / 2) & (least > float(kept.smallest_normal))


def _integers(op: str, parts: Any, dtype: Any) -> Any:
    """Integers wrap around, as those of XLA do; a mean divides the sum."""
    with np.errstate(all="ignore"):
        if op in ("min", "max"):
            return (np.minimum if op == "min" else np.maximum).reduce(parts)
        if op == "prod":
            return np.multiply.reduce(parts.astype(dtype), dtype=dtype)
        total = np.add.reduce(parts.astype(dtype), dtype=dtype)
        return total if op == "sum" else (total / len(parts)).astype(dtype)
