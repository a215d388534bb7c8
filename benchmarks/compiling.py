"""How much longer programs with 300 collectives compile with whole programs than without, in CPU seconds.

    python -m benchmarks.compiling

Three kinds of compilation of the same program, lowered anew, take turns in one process: without jaxring, by a
transformation that hands each module back as it is, and by jaxring's. The second is what XLA takes to hand a module out
and to read it again, which no transformation can do without. `callback` is the time that jaxring's code takes. CPU
seconds are those of all threads. The median over compilations, in brackets the quartiles. The last program has no
collectives: there the callback only finds that out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES, COLLECTIVES, TIMES = 8, 300, 9
KINDS = ("without", "handed back", "with")


class Compiled(NamedTuple):
    """CPU seconds of one compilation and of the callback in it, collectives that became calls, bytes of its modules."""

    seconds: float
    callback: float = 0.0
    calls: int = 0
    nbytes: int = 0


def programs() -> dict[str, Callable[[], Any]]:
    """What lowers each of them: training steps of many layers, and a chain that does little but communicate."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,))
    rows, columns, whole = (NamedSharding(mesh, spec) for spec in (P("x"), P(None, "x"), P()))

    def layers(count: int, up: Any, down: Any) -> Callable[[], Any]:
        def loss(weights: Any, x: Any) -> Any:
            for first, second in weights:
                x = jax.lax.with_sharding_constraint(x + jax.nn.relu(x @ first) @ second, batch)
            return jnp.mean(x**2)

        def step(weights: Any, x: Any) -> Any:
            gradients = jax.grad(loss)(weights, x)
            return jax.tree.map(lambda w, g: w - 1e-2 * g, weights, gradients)

        batch = rows if up is rows else whole
        shape = jax.ShapeDtypeStruct
        layer = (shape((64, 256), jnp.float32, sharding=up), shape((256, 64), jnp.float32, sharding=down))
        weights, x = [layer] * count, shape((64, 64), jnp.float32, sharding=batch)
        sharded = [(up, down)] * count
        return lambda: jax.jit(lambda w, x: step(w, x), out_shardings=sharded).lower(weights, x)

    def reshards() -> Any:
        def chain(x: Any) -> Any:
            for i in range(COLLECTIVES // 3):
                x = jax.lax.with_sharding_constraint(jnp.sin(x), columns)
                x = jax.lax.with_sharding_constraint(x + i, rows)
                x = x + jnp.mean(x)
            return x

        return jax.jit(chain).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=rows))

    return {
        "fsdp, 50 layers": layers(50, rows, rows),
        "tensor parallel, 150 layers": layers(150, columns, rows),
        "reshards and sums": reshards,
        "50 layers, nothing sharded": layers(50, whole, whole),
    }


def compiled(lower: Callable[[], Any], kind: str) -> Compiled:
    """Lowers the program and compiles it once; ``kind`` is one of KINDS."""
    import jaxring
    from jaxring.dropin.whole_program.hlo_calls import Calls
    from jaxring.dropin.whole_program.transformation import transform

    done = Calls.done
    callback, calls, nbytes = 0.0, 0, 0

    def timed(data: bytes) -> bytes | None:
        nonlocal callback, nbytes
        nbytes += len(data)
        if kind == "handed back":
            return data
        begin = time.thread_time()
        try:
            return transform(data)
        finally:
            callback += time.thread_time() - begin

    def counted(made: Calls) -> None:
        nonlocal calls
        calls += len(made.pending)
        done(made)

    def measured() -> float:
        lowered = lower()
        begin = time.process_time()
        lowered.compile()
        return time.process_time() - begin

    if kind == "without":
        return Compiled(measured())
    with (
        mock.patch("jaxring.dropin.whole_program.transform", timed),
        mock.patch.object(Calls, "done", counted),
        jaxring.installed(whole_program=True),
    ):
        seconds = measured()
    return Compiled(seconds, callback, calls, nbytes)


def main(argv: list[str] | None = None) -> int:
    """The command line of ``python -m benchmarks.compiling``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="WORD", help="the programs whose names contain it")
    parser.add_argument("--times", type=int, default=TIMES, metavar="N", help="compilations of each kind (%(default)s)")
    given = parser.parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax

    from benchmarks.turns import spread

    before = f"{'program':28} {'calls':>5}  {'module':>8}  {'compile':>8}  {'callback':>10}"
    print(f"{before}  {'handed back / without':41}  with / without")
    for name, lower in programs().items():
        if given.only not in name:
            continue
        turns = []
        for turn in range(given.times + 1):
            found = {}
            for at in range(len(KINDS)):
                kind = KINDS[(turn + at) % len(KINDS)]
                jax.clear_caches()
                found[kind] = compiled(lower, kind)
            if turn:  # the first ones load libraries and code
                turns.append(found)
        ours = [each["with"] for each in turns]
        ratios = {kind: [each[kind].seconds / each["without"].seconds for each in turns] for kind in KINDS}
        seconds, callback = (statistics.median(each[i] for each in ours) for i in (0, 1))
        print(
            f"{name:28} {ours[0].calls:5}  {ours[0].nbytes >> 10:4} KiB  {seconds:6.2f} s  {1e3 * callback:7.2f} ms  "
            f"{spread(ratios['handed back']):41}  {spread(ratios['with'])}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
