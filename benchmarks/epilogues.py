"""Time what an epilogue saves: reductions with one, and the same function applied to their results, in turns.

    python -m benchmarks.epilogues --devices 4
    jaxring run -n 2 --output rank0 -m benchmarks.epilogues --bytes 16M

``--function``: "scale" and "cast" (to bfloat16) of an all-reduce, "adam" of a reduce-scatter, which takes one step
after another on parameters and moments that it donates. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring import epilogues
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FUSED, APART = "epilogue", "function of the result"
RATE = 1e-3


def _scale(x: Any, fused: bool) -> Any:
    return jaxring.all_reduce(x, "r", epilogue=epilogues.scale(0.125)) if fused else 0.125 * jaxring.all_reduce(x, "r")


def _cast(x: Any, fused: bool) -> Any:
    if fused:
        return jaxring.all_reduce(x, "r", epilogue=epilogues.cast(jnp.bfloat16))
    return jaxring.all_reduce(x, "r").astype(jnp.bfloat16)


def _adam(x: Any, fused: bool, *own: Any) -> Any:
    """Of gradients ``x``, float32[n], and this rank's parameters and moments, float32[n / ranks] each."""
    params, mu, nu = own
    if fused:
        step = epilogues.adam(params, mu, nu, 1, RATE)
        new = jaxring.reduce_scatter(x, "r", tiled=True, epilogue=step)
    else:
        gradient = jaxring.reduce_scatter(x, "r", tiled=True)
        optimizer = optax.adam(RATE)
        state = optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)
        updates, (state, *_) = optimizer.update(gradient, (state, optax.EmptyState()))
        new = optax.apply_updates(params, updates), state.mu, state.nu
    return new


FUNCTIONS: dict[str, Callable[..., Any]] = {"scale": _scale, "cast": _cast, "adam": _adam}


class _Steps:
    """A program that goes on with the parameters and moments that it gave last, if its function has any."""

    def __init__(self, function: str, fused: bool, mesh: Mesh, own: Sequence[Any]) -> None:
        def run(x: Any, *own: Any) -> Any:
            return FUNCTIONS[function](x, fused, *own)

        spread = jax.shard_map(run, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
        self._step = jax.jit(spread, donate_argnums=tuple(range(1, 1 + len(own))))
        self._own = tuple(jnp.copy(each) for each in own)

    def __call__(self, x: Any) -> Any:
        result = self._step(x, *self._own)
        if self._own:
            self._own = result
        return result


def measure(function: str, nbytes: int, iterations: int) -> turns.Times:
    """Times in s of a reduction of ``nbytes`` of float32 per rank in both ways."""
    mesh = turns.mesh("r")
    sharding = NamedSharding(mesh, P("r"))
    count = nbytes // 4 // mesh.size * mesh.size
    lengths = (count, *[count // mesh.size] * 3) if function == "adam" else (count,)
    random = np.random.default_rng(0)

    def operand(length: int) -> Any:
        x = random.integers(1, 64, mesh.size * length).astype(np.float32)  # sums are exact in any order
        return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

    x, *own = (operand(length) for length in lengths)
    programs = {name: _Steps(function, name == FUSED, mesh, own) for name in (FUSED, APART)}
    fused, apart = (jax.tree.leaves(programs[name](x)) for name in (FUSED, APART))
    for one, other in zip(fused, apart, strict=True):
        mine, others = (np.asarray(each.addressable_shards[0].data, np.float32) for each in (one, other))
        np.testing.assert_allclose(mine, others, rtol=1e-5, atol=1e-6)
    return turns.measure_in_turns(programs, (x,), iterations)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epilogues", description=__doc__.split("\n")[0])
    parser.add_argument("--function", choices=tuple(FUNCTIONS), default="scale", help="(default: scale)")
    parser.add_argument("--bytes", type=size, default=size("16M"), help="of the operand of a rank (default: 16M)")
    turns.add_arguments(parser, iters=20)
    arguments = parser.parse_args(argv)
    turns.use_devices(arguments.devices)
    times = measure(arguments.function, arguments.bytes, arguments.iters)
    if jax.process_index() != 0:
        return 0
    medians = turns.medians(times)
    title = (
        f"{arguments.function} of {arguments.bytes} bytes of float32 per rank, {turns.ranks()}, "
        f"{arguments.iters} iterations"
    )
    turns.report(times, title, f"{FUSED}: {medians[APART] / medians[FUSED]:.2f} times as fast as the {APART}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
