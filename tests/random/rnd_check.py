"""Runs random programs by `jax.lax`, by jaxring in three ways, and by NumPy, and compares the results.

Several programs are compiled as one, since compiling is what takes the time. Where that fails each is run by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import traceback
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jaxring
from tests.random.rnd_build import function, mesh, spec
from tests.random.rnd_inputs import inputs
from tests.random.rnd_numpy import expected
from tests.random.rnd_ops import INSTALLED, LAX, OURS, OURS_LAX
from tests.random.rnd_program import is_float

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jax.sharding import Mesh

    from tests.random.rnd_program import Program

# What is compiled together. The reference is by itself: XLA's collectives and ours need not wait for each other.
TOGETHER = ((LAX,), (OURS, OURS_LAX), (INSTALLED,))
RUNS = 2  # of ours, which agree to the bit


@dataclasses.dataclass
class Outcome:
    """What came of a program: ``faults`` by words, and what `jax.lax` cannot do."""

    program: Program
    faults: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""
    results: dict[str, Any] = dataclasses.field(default_factory=dict)


def check(programs: Sequence[Program]) -> list[Outcome]:
    """Runs programs whose devices are the same, each in all ways."""
    outcomes = [Outcome(program) for program in programs]
    for together in TOGETHER:
        with jaxring.installed() if INSTALLED in together else contextlib.nullcontext():
            _run_all(outcomes, together)
    for outcome in outcomes:
        _compare(outcome)
    return outcomes


def reference(program: Program) -> None:
    """Runs a program by `jax.lax` alone."""
    _run_all([Outcome(program)], (LAX,))


def check_many(groups: Sequence[Sequence[Program]]) -> Iterator[Outcome]:
    """As `check`, of several groups, with one installation: that empties JAX's caches."""
    every = [[Outcome(program) for program in apart] for group in groups for apart in _apart(group)]
    for together in TOGETHER:
        with jaxring.installed() if INSTALLED in together else contextlib.nullcontext():
            for outcomes in every:
                _run_all(outcomes, together)
    for outcomes in every:
        for outcome in outcomes:
            _compare(outcome)
            yield outcome


def _apart(programs: Sequence[Program]) -> list[list[Program]]:
    """What may be compiled together: XLA ends the process where a partially manual region meets another mesh."""
    whole = [each for each in programs if len(each.manual) == len(each.axes)]
    return (
        [whole, *([each] for each in programs if len(each.manual) < len(each.axes))]
        if whole
        else [[p] for p in programs]
    )


def _run_all(outcomes: list[Outcome], together: Sequence[Any]) -> None:
    try:
        _run(outcomes, together)
    except Exception:
        if len(outcomes) == 1:
            error = traceback.format_exc(limit=-8)
            if LAX in together:
                outcomes[0].refused = error
            else:
                outcomes[0].faults.append(f"{together[0].name} fails:\n{error}")
            return
        for outcome in outcomes:
            _run_all([outcome], together)


def _run(outcomes: list[Outcome], together: Sequence[Any]) -> None:
    over = [mesh(outcome.program, jax.devices()) for outcome in outcomes]
    data = [inputs(outcome.program) for outcome in outcomes]
    errors: dict[tuple[int, str], str] = {}

    def everything(donated: Any, kept: Any) -> Any:
        found = {}
        for i, outcome in enumerate(outcomes):
            args = [donated[i].get(k, kept[i].get(k)) for k in range(len(data[i]))]
            for ops in together:
                try:
                    results = function(outcome.program, over[i], ops)(*args)
                    if ops is not OURS:
                        _check_shapes(outcome.program, results)
                    found[f"{i} {ops.name}"] = results
                except Exception:
                    errors[i, ops.name] = traceback.format_exc(limit=-8)
        return found

    def place(program: Program, where: Mesh, xs: list[Any], donated: bool) -> dict[int, Any]:
        batch = (None,) if program.outer == "vmap" else ()
        return {
            k: jax.make_array_from_callback(
                x.shape, jax.NamedSharding(where, jax.P(*batch, *spec(t.vary))), lambda at, x=x: x[at]
            )
            for k, (x, t) in enumerate(zip(xs, program.inputs, strict=True))
            if (k in program.donated) == donated
        }

    jitted = jax.jit(everything, donate_argnums=0)
    for _ in range(1 if LAX in together else RUNS):
        args = [
            [place(o.program, where, xs, donated) for o, where, xs in zip(outcomes, over, data, strict=True)]
            for donated in (True, False)
        ]
        results = jax.block_until_ready(jitted(*args))
        for i, outcome in enumerate(outcomes):
            for ops in together:
                if (i, ops.name) not in errors:
                    _keep(outcome, ops.name, results[f"{i} {ops.name}"])
    for (i, name), error in errors.items():
        if name == LAX.name:
            outcomes[i].refused = error
        else:
            outcomes[i].results[name] = error


def _check_shapes(program: Program, results: Sequence[Any]) -> None:
    """ValueError for wrong ones: JAX's rule of `jax.vmap` for an all_to_all of what is not batched adds a dimension."""
    batch = (2,) if program.outer == "vmap" else ()
    right = [(*batch, math.prod(program.sizes[name] for name in t.vary), *t.shape) for t in program.outputs]
    shapes = [y.shape for y in results]
    if shapes != right:
        raise ValueError(f"the outputs' shapes are {shapes}, not {right}")


def _keep(outcome: Outcome, name: str, results: Any) -> None:
    shards = [[(s.index, np.asarray(s.data)) for s in result.addressable_shards] for result in results]
    before = outcome.results.get(name)
    outcome.results[name] = shards
    if before is not None:
        for number, (old, new) in enumerate(zip(before, shards, strict=True)):
            if any(a[1].tobytes() != b[1].tobytes() for a, b in zip(old, new, strict=True)):
                outcome.faults.append(f"two runs of {name} differ in output {number}: {old} and {new}")


def _compare(outcome: Outcome) -> None:
    right = expected(outcome.program, inputs(outcome.program))
    for name, shards in outcome.results.items():
        if isinstance(shards, str):
            if not outcome.refused:
                outcome.faults.append(f"{name} cannot be traced:\n{shards}")
            continue
        reference = outcome.results.get(LAX.name)
        for number, t in enumerate(outcome.program.outputs):
            value, tolerance = right[number]
            for at, got in shards[number]:
                if len(at) != value.ndim:
                    outcome.faults.append(f"{name}, output {number}: {len(at)} dimensions, not {value.ndim} (NumPy)")
                    break
                strict = t.moved and name != LAX.name
                fault = _differs(got, value[at], tolerance, t.dtype, strict)
                if fault:
                    outcome.faults.append(f"{name}, output {number}, shard {at}: {fault} (NumPy)")
                elif reference is not None and name != LAX.name:
                    other = _part(reference[number], value.shape, at)
                    if other is None:
                        continue
                    wide = other.astype(
                        np.complex128 if np.iscomplexobj(other) else np.float64 if is_float(t.dtype) else other.dtype
                    )
                    fault = _differs(got, wide, 2 * tolerance, t.dtype, False)
                    if fault:
                        outcome.faults.append(f"{name}, output {number}, shard {at}: {fault} (jax.lax)")
                if fault:
                    break
    outcome.results = {}


def _part(shards: Sequence[tuple[Any, Any]], shape: tuple[int, ...], at: Any) -> Any:
    """Returns what ``shards`` hold of a result of ``shape`` at ``at``, or None where other processes hold some of it.

    XLA chooses how a result is sharded, and may split one way's result that it replicates for another way.
    """
    whole = np.zeros(shape, shards[0][1].dtype)
    held = np.zeros(shape, bool)
    for place, data in shards:
        whole[place] = data
        held[place] = True
    return whole[at] if held[at].all() else None


def _differs(got: Any, right: Any, tolerance: float, dtype: str, strict: bool) -> str:
    if got.shape != right.shape or got.dtype.name != dtype:
        return f"{got.dtype}{got.shape}, not {dtype}{right.shape}"
    with np.errstate(all="ignore"):
        wide = got.astype(right.dtype)
        unlike = ~((wide == right) | ((wide != wide) & (right != right)))
        if tolerance:
            unlike &= ~(np.abs(wide - right) <= tolerance)
        if strict and is_float(dtype):
            for part in (np.real, np.imag):
                a, b = part(wide), part(right)
                unlike |= (np.signbit(a) != np.signbit(b)) & (a == a) & (b == b)
    if not unlike.any():
        return ""
    return f"{int(unlike.sum())} of {unlike.size} wrong, tolerance {tolerance}:\n{got}\nright is\n{right}"


def replay(program: Program) -> None:
    """Checks one program and says what came of it."""
    jax.config.update("jax_enable_x64", True)
    (outcome,) = check([program])
    print(program.describe())
    print(
        "\n".join(outcome.faults) or f"right{', but jax.lax refuses it: ' + outcome.refused if outcome.refused else ''}"
    )
