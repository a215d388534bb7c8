"""Print what the tuners choose over a grid of calls, one line for each, to compare before and after a change.

    python tools/choices.py > before; ...; python tools/choices.py > after; diff before after

The lines hold algorithm, protocol, channels, reason and the prices of all candidates, or the error.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from jaxring.plan import tuner
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu import tuner as gpu_tuner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The memory domain and the host of each rank.
PLACES = {
    "1x1": ((0,), (0,)),
    "2 in 1": ((0,) * 2, (0,) * 2),
    "8 in 1": ((0,) * 8, (0,) * 8),
    "2x1": ((0, 1), (0,) * 2),
    "3x1": ((0, 1, 2), (0,) * 3),
    "4x1": ((0, 1, 2, 3), (0,) * 4),
    "16x1": (tuple(range(16)), (0,) * 16),
    "2x2": ((0, 0, 1, 1), (0,) * 4),
    "2x4": ((0,) * 4 + (1,) * 4, (0,) * 8),
    "uneven": ((0, 0, 0, 1, 2), (0,) * 5),
    "woven": ((0, 1, 0, 1), (0, 1, 0, 1)),
    "2 hosts": ((0, 1), (0, 1)),
    "4 hosts": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "8 hosts": (tuple(range(8)), tuple(range(8))),
    "2 hosts x2x2": ((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 0, 1, 1, 1, 1)),
    "4 hosts x2": ((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 1, 1, 2, 2, 3, 3)),
}
ON_GPUS = ("2 in 1", "8 in 1", "2x1", "4x1", "2x2", "2x4", "4 hosts x2")
SIZES = [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
ASKED = (
    (None, "ll"),
    (None, "simple"),
    ("ring", None),
    ("direct", None),
    ("pxn", None),
    ("multileader", None),
    ("hier_ring", "simple"),
)
ASKED_OF_GPUS = (("ring", "ll128"), ("copy_engine", None), ("deterministic", None), ("pxn", None))


def choice(choose: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What is chosen, or why nothing is."""
    try:
        found = choose(*args, **named)
    except ValueError as error:
        return str(error)
    return [found.algorithm, found.protocol, found.channels, found.reason, found.candidates]


def on_cpus() -> Iterator[list[Any]]:
    """The grid of the CPU engine's tuner."""
    calls = itertools.product(COLLECTIVES, PLACES.items(), SIZES, ("float32", "bfloat16", "int8"))
    for collective, (place, (domains, hosts)), nbytes, dtype in calls:
        asked = [(None, None, 0), (None, None, 2)]
        if dtype == "float32":
            asked += [(*each, 0) for each in ASKED]
        for algorithm, protocol, processors in asked:
            interfaces = 2 if "hosts" in place else 1
            found = choice(
                tuner.choose, collective, domains, hosts, nbytes, dtype, algorithm, protocol,
                interfaces=interfaces, processors=processors,
            )  # fmt: skip
            yield ["CPU", collective, place, nbytes, dtype, algorithm, protocol, processors, found]


def on_gpus() -> Iterator[list[Any]]:
    """The grid of the CUDA engine's tuner."""
    for collective, place, nbytes, dtype in itertools.product(COLLECTIVES, ON_GPUS, SIZES, ("float32", "bfloat16")):
        for algorithm, protocol, able in [
            (None, None, True),
            (None, None, False),
            *((*a, True) for a in ASKED_OF_GPUS),
        ]:
            found = choice(
                gpu_tuner.choose, collective, PLACES[place][0], nbytes, dtype, 16, algorithm, protocol,
                whole_lines=able, no_nvls="" if able else "no",
                also=("nvls",) if able else (),
            )  # fmt: skip
            yield ["GPU", collective, place, nbytes, dtype, algorithm, protocol, able, found]


if __name__ == "__main__":
    for line in itertools.chain(on_cpus(), on_gpus()):
        print(json.dumps(line))
