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
    from tests.random.rnd_partitioned import Partitioned

# Results are near one; sums in another order differ by some roundings, in bfloat16 more.
_TOLERANCE, _COARSE = 1e-4, 0.1


@dataclasses.dataclass
class Result:
    """What is wrong with a program, why JAX itself refuses it, how many operations the engine ran, what XLA kept."""

    faults: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""
    operations: int = 0
    kept: list[str] = dataclasses.field(default_factory=list)


def check_partitioned(program: Partitioned) -> Result:
    """Compares one program."""
    result = Result()
    kind = AxisType.Explicit if program.explicit else AxisType.Auto
    shape = tuple(size for _, size in program.axes)
    devices = np.array(jax.devices())[list(program.order)].reshape(shape)
    mesh = Mesh(devices, tuple(name for name, _ in program.axes), axis_types=(kind,) * len(shape))
    function = _function(program, mesh)
    with jax.set_mesh(mesh):
        inputs = [_input(program, i, mesh) for i in range(len(program.inputs))]
        try:
            expected = _parts(jax.jit(function)(*inputs))
        except Exception as error:  # what JAX cannot shard
            result.refused = f"{type(error).__name__}: {error}"
            return result
        before, kept = jaxring.counters()["operations"], notes()
        with jaxring.installed(whole_program=True):
            try:
                # Twice: the second time with plans.
                again = [_parts(jax.jit(function)(*inputs)) for _ in range(2)]
            except Exception as error:
                result.faults.append(f"{type(error).__name__}: {error}")
                return result
        result.operations = jaxring.counters()["operations"] - before
    result.kept = [text for text in notes() if text not in kept]
    rough = "bfloat16" in program.describe()
    for i, (want, *got) in enumerate(zip(expected, *again, strict=True)):
        for where, part in want.items():
            for other in got:
                if not np.allclose(
                    other[where], part, _COARSE if rough else _TOLERANCE, _COARSE if rough else 1e-5, True
                ):
                    result.faults.append(f"result {i} at {where}:\n{other[where]}\nis not\n{part}")
            if not np.array_equal(got[0][where], got[1][where], equal_nan=True):
                result.faults.append(f"result {i} at {where} differs from run to run")
    return result


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

    names = {"jax": jax, "jnp": jnp, "put": put, "start": start, "roll": roll, "product": product}
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
