"""Time `jaxring.reshard` against `jax.device_put`, which take turns, where the latter does it at all.

Each call gets a new array: `jax.device_put` may leave a copy of its operand in the host's memory with it, which would
serve the next call. Exits with 1 where a process gets other bits than the array's.

jaxring run -n 2 --devices-per-process 2 --output rank0 -m benchmarks.reshard
python -m benchmarks.reshard --devices 4
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring.settings.sizes import shown, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.sharding import Sharding

THEIRS, OURS = "jax.device_put", "jaxring.reshard"
# As many as small arrays take until they go by a program, where they ever do.
_CALLS_BEFORE = 8


def pairs() -> dict[str, tuple[Sharding, Sharding]]:
    """Sources and targets by name, over the devices of the job."""
    devices = turns.mesh("x").devices
    half = len(devices) // 2

    def over(some: Any, *spec: Any) -> Sharding:
        mesh = Mesh(some, ("x", "y")[: some.ndim])
        return NamedSharding(mesh, P(*spec))  # type: ignore[no-untyped-call]

    grid = devices.reshape(2, -1)
    return {
        "rows to columns": (over(devices, "x"), over(devices, None, "x")),
        "rows to all": (over(devices, "x"), over(devices)),
        "rows in reverse": (over(devices, "x"), over(devices[::-1], "x")),
        "grid transposed": (over(grid, "x", "y"), over(grid, "y", "x")),
        "all to one half": (over(devices, "x"), over(devices[:half], "x")),
        "one half to the other": (over(devices[:half], "x"), over(devices[half:], None, "x")),
    }


def _refused(program: Any, x: Any) -> str:
    """Why it does not do it; "" if it does."""
    try:
        jax.block_until_ready(program(x))  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever jax raises is the finding
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return ""


def measure(nbytes: int, iterations: int, clock: Callable[[], float]) -> bool:
    """Prints a table for each pair, in process 0. Whether this process gets the right bits of each."""
    side = max(8, int((nbytes / 4) ** 0.5) // 8 * 8)
    values = np.arange(side * side, dtype=np.float32).reshape(side, side)
    talks, right = jax.process_index() == 0, True
    for name, (source, target) in pairs().items():

        def operands(source: Any = source) -> tuple[Any]:
            if not source.addressable_devices:
                return (jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=source),)  # type: ignore[no-untyped-call]
            x = jax.make_array_from_callback(values.shape, source, lambda index: values[index])
            return (jax.block_until_ready(x),)  # type: ignore[no-untyped-call]

        programs: dict[str, Any] = {OURS: lambda x, target=target: jaxring.reshard(x, target, may_alias=True)}
        for _ in range(_CALLS_BEFORE):
            result = programs[OURS](*operands())
        shards = result.addressable_shards if target.addressable_devices else []
        wrong = [s.device for s in shards if np.asarray(s.data).tobytes() != values[s.index].tobytes()]
        if wrong:
            right = False
            print(f"{name}: DIFFERENT bits on {wrong}", flush=True)
        theirs: Any = lambda x, target=target: jax.device_put(x, target)  # noqa: E731
        apart = not source.is_fully_addressable and source.device_set != target.device_set
        reason = "it needs the same devices in all processes" if apart else _refused(theirs, *operands())
        if not reason:
            programs = {THEIRS: theirs, **programs}
        times = turns.measure_in_turns(programs, operands, iterations, clock)
        if talks:
            middle = turns.medians(times)
            line = f"{THEIRS}: {reason}" if reason else f"{THEIRS} / {OURS}: {middle[THEIRS] / middle[OURS]:.2f}"
            turns.report(times, f"\n{name}, {shown(values.nbytes)}", line)
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reshard", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("64M"), help="of the whole array (default: 64M)")
    parser.add_argument("--cpu", action="store_true", help="CPU time of process 0, which other load disturbs less")
    turns.add_arguments(parser, iters=11)
    arguments = parser.parse_args(argv)
    turns.use_devices(arguments.devices)
    clock = time.process_time if arguments.cpu else time.perf_counter
    return 0 if measure(arguments.bytes, arguments.iters, clock) else 1


if __name__ == "__main__":
    sys.exit(main())
