"""Runs a random program of plain `jit` by XLA alone and under `jaxring.install(whole_program=True)`, and compares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxring
from jaxring.runtime.explain import notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.random.rnd_partitioned import Partitioned

# Results are near one; sums in another order differ by some roundings, in bfloat16 more.
_TOLERANCE, _COARSE = 1e-4, 0.1


@dataclasses.dataclass
class Result:
    """What is wrong with a program, why JAX itself refuses it, how many operations the engine ran, what XLA kept.

    What XLA kept is a fault: the engine can carry all that these programs need.
    """

    faults: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""
    operations: int = 0
    kept: list[str] = dataclasses.field(default_factory=list)


def check_partitioned(programs: Sequence[Partitioned]) -> list[Result]:
    """Compares programs, with one installation: that empties JAX's caches."""
    runs = [_Run(program) for program in programs]
    for run in runs:
        run.by_xla()
    with jaxring.installed(whole_program=True):
        for run in runs:
            run.by_jaxring()
    for run in runs:
        run.compare()
    return [run.result for run in runs]


def reference_partitioned(program: Partitioned) -> None:
    """Runs a program by XLA alone."""
    _Run(program).by_xla()


class _Run:
    """A program in both ways."""

    def __init__(self, program: Partitioned) -> None:
        self.program, self.result = program, Result()
        kind = AxisType.Explicit if program.explicit else AxisType.Auto
        shape = tuple(size for _, size in program.axes)
        devices = np.array(jax.devices())[list(program.order)].reshape(shape)
        self.mesh = Mesh(devices, tuple(name for name, _ in program.axes), axis_types=(kind,) * len(shape))
        self.function = _function(program, self.mesh)
        with jax.set_mesh(self.mesh):
            self.inputs = [_input(program, i, self.mesh) for i in range(len(program.inputs))]
        self.expected: list[dict[str, Any]] = []
        self.got: list[list[dict[str, Any]]] = []

    def launch(self) -> list[dict[str, Any]]:
        with jax.set_mesh(self.mesh):
            return _parts(jax.jit(self.function)(*self.inputs))

    def by_xla(self) -> None:
        try:
            self.expected = self.launch()
        except Exception as error:  # what JAX cannot shard
            self.result.refused = f"{type(error).__name__}: {error}"

    def by_jaxring(self) -> None:
        """Twice: the second time with plans."""
        if self.result.refused:
            return
        before, kept = jaxring.counters()["operations"], notes()
        try:
            self.got = [self.launch() for _ in range(2)]
        except Exception as error:
            self.result.faults.append(f"{type(error).__name__}: {error}")
        self.result.operations = jaxring.counters()["operations"] - before
        self.result.kept = [text for text, count in notes().items() if count > kept.get(text, 0)]

    def compare(self) -> None:
        faults = self.result.faults
        faults += [f"left to XLA: {text}" for text in self.result.kept]
        rough = "bfloat16" in self.program.describe()
        near = {"rtol": _COARSE, "atol": _COARSE} if rough else {"rtol": _TOLERANCE, "atol": 1e-5}
        for other in self.got:
            for i, (want, parts) in enumerate(zip(self.expected, other, strict=True)):
                for where, part in want.items():
                    if not np.allclose(parts[where], part, equal_nan=True, **near):
                        faults.append(f"result {i} at {where}:\n{parts[where]}\nis not\n{part}")
        for i, (first, second) in enumerate(zip(*self.got, strict=True) if self.got else ()):
            for where, part in first.items():
                if not np.array_equal(part, second[where], equal_nan=True):
                    faults.append(f"result {i} at {where} differs from run to run")


def _function(program: Partitioned, mesh: Mesh) -> Any:
    def place(spec: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(each or None for each in spec)))

    def put(x: Any, spec: Any) -> Any:
        return jax.reshard(x, place(spec)) if program.explicit else jax.lax.with_sharding_constraint(x, place(spec))

    def start(x: Any) -> Any:
        return x.real.astype(jnp.float32) / 8 if x.dtype != jnp.float64 else x / 8

    def roll(x: Any, k: int, axis: int) -> Any:
        if program.explicit:  # jnp.roll refuses explicit axes along its dimension
            return put(x * k, ((), ()))
        return jnp.roll(x, k, axis)

    def product(x: Any, y: Any) -> Any:
        if program.explicit:
            first = jax.typeof(x).sharding.spec
            return jnp.einsum("ij,jk->ik", x, y, out_sharding=NamedSharding(mesh, PartitionSpec(first[0], None)))
        return x @ y

    def einsum(text: str, x: Any, y: Any, spec: Any) -> Any:
        if program.explicit:
            return jnp.einsum(text, x, y, out_sharding=place(spec))
        return put(jnp.einsum(text, x, y), spec)

    names = {"jax": jax, "jnp": jnp, "put": put, "start": start, "roll": roll, "product": product, "einsum": einsum}
    exec(program.text, names)
    return names["program"]


def _input(program: Partitioned, index: int, mesh: Mesh) -> jax.Array:
    shape, dtype, spec = program.inputs[index]
    generator = np.random.default_rng([program.seed, index])
    values = generator.integers(-9, 10, shape)
    value = np.asarray(values + 1j * values.T.reshape(shape) if dtype == "complex64" else values)
    whole = value.astype(jnp.dtype(dtype))
    place = NamedSharding(mesh, PartitionSpec(*(each or None for each in spec)))
    return jax.make_array_from_callback(shape, place, lambda at: whole[at])


def _parts(results: Any) -> list[dict[str, Any]]:
    """What this process has of each result, by its place in the whole."""
    return [{str(s.index): np.asarray(s.data) for s in x.addressable_shards} for x in results]
