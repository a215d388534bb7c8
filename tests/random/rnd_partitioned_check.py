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

# Results are near one; sums in another order differ by some roundings. In bfloat16 they differ more from what XLA makes
# of them, which leaves out roundings, and what follows may amplify that: XLA's own error says by how much.
_TOLERANCE, _COARSE, _OF_BFLOAT16 = 1e-4, 0.1, 0.02


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
        self.rough = _rounds_to_bfloat16(program)
        self.expected: list[dict[str, Any]] = []
        self.exact: list[dict[str, Any]] = []
        self.got: list[list[dict[str, Any]]] = []

    def launch(self) -> list[dict[str, Any]]:
        with jax.set_mesh(self.mesh):
            return _parts(jax.jit(self.function)(*self.inputs))

    def in_float64(self) -> list[dict[str, Any]]:
        """The results without any rounding to bfloat16 or float32."""
        function = _function(self.program, self.mesh, wide=True)
        widened = {"bfloat16": "float64", "float32": "float64", "complex64": "complex128"}
        with jax.set_mesh(self.mesh):
            inputs = [x.astype(widened.get(str(x.dtype), x.dtype)) for x in self.inputs]
            return _parts(jax.jit(function)(*inputs))

    def by_xla(self) -> None:
        try:
            self.expected = self.launch()
            if self.rough:
                self.exact = self.in_float64()
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
        near = {"rtol": _COARSE, "atol": _COARSE} if self.rough else {"rtol": _TOLERANCE, "atol": 1e-5}
        for other in self.got:
            for i, (want, parts) in enumerate(zip(self.expected, other, strict=True)):
                for where, part in want.items():
                    if not np.allclose(parts[where], part, equal_nan=True, **near):
                        faults.append(f"result {i} at {where}:\n{parts[where]}\nis not\n{part}")
        for i, exact in enumerate(self.exact if self.got else ()):
            allowed = _OF_BFLOAT16 + 2 * _error(self.expected[i], exact)
            if (error := _error(self.got[0][i], exact)) > allowed:
                faults.append(f"result {i} is {error:g} off what float64 gives; XLA's own allows {allowed:g}")
        for i, (first, second) in enumerate(zip(*self.got, strict=True) if self.got else ()):
            for where, part in first.items():
                if not np.array_equal(part, second[where], equal_nan=True):
                    faults.append(f"result {i} at {where} differs from run to run")


def _rounds_to_bfloat16(program: Partitioned) -> bool:
    """Inputs become float32 before anything is computed, but in outer products."""
    inputs = any(dtype == "bfloat16" for _, dtype, _ in program.inputs)
    return "jnp.bfloat16" in program.text or (inputs and "jnp.outer" in program.text)


def _error(parts: dict[str, Any], exact: dict[str, Any]) -> float:
    """The greatest difference; what is not finite in either is left to the comparison with XLA."""
    off = [np.abs(parts[where].astype(np.float64) - part) for where, part in exact.items()]
    return max(float(np.max(each, initial=0, where=np.isfinite(each))) for each in off)


def _function(program: Partitioned, mesh: Mesh, wide: bool = False) -> Any:
    """The program's function. ``wide``: in float64, whatever the program says."""

    def place(spec: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(each or None for each in spec)))

    def put(x: Any, spec: Any) -> Any:
        return jax.reshard(x, place(spec)) if program.explicit else jax.lax.with_sharding_constraint(x, place(spec))

    def start(x: Any) -> Any:
        if wide:
            return x.real.astype(jnp.float64) / 8
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

    def take(x: Any, at: Any, spec: Any) -> Any:
        return x.at[at].get(out_sharding=place(spec))

    def add_at(x: Any, at: Any, y: Any, spec: Any) -> Any:
        return x.at[at].add(y, out_sharding=place(spec))

    names = {"jax": jax, "jnp": jnp, "put": put, "start": start, "roll": roll, "product": product, "einsum": einsum}
    names |= {"take": take, "add_at": add_at}
    exec(program.text.replace("jnp.bfloat16", "jnp.float64") if wide else program.text, names)
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
