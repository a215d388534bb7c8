"""Write the planner's schedules for the native tests to OUT, which ffi/tests/support/schedules.h reads.

The first list has every collective by every algorithm that serves it, over a few placements of ranks on processes,
those that gather several chunks into a message over a few more, and permute's halves. The second list has the
all-reduces of MATRIX for all numbers of ranks. Numbers are little-endian; strings and lists begin with their length.
Needs numpy and `jaxring.plan` only.

usage: python tools/dump_schedules.py OUT
"""

import dataclasses
import struct
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

# `import jaxring` needs the native module, which may not be built yet, so `jaxring.plan` is imported without it.
package = types.ModuleType("jaxring")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "jaxring")]
sys.modules["jaxring"] = package

from jaxring.plan.algorithms import build, serving  # noqa: E402
from jaxring.plan.algorithms.halves import build_half  # noqa: E402
from jaxring.plan.collectives import COLLECTIVES  # noqa: E402
from jaxring.plan.schedule import Schedule, Spec  # noqa: E402

PLACEMENTS = {
    "1x1": (0,),
    "1x4": (0, 0, 0, 0),
    "4x1": (0, 1, 2, 3),
    "2x2": (0, 0, 1, 1),
    "3+1": (0, 0, 0, 1),
    "2+1+2": (0, 1, 0, 2, 2),
    "2x4": (0, 0, 0, 0, 1, 1, 1, 1),
}
CHANNELS = {"2x2": (1, 3)}
# Only of algorithms that gather chunks there.
GATHERING = {"3x2": (0, 0, 1, 1, 2, 2)}
MATRIX = ("ring", "tree", "direct", "halving_doubling")


def permutation(nranks: int) -> tuple[tuple[int, int], ...]:
    """The pairs (r, r + 1), so that rank 0 has no source; a single rank sends to itself."""
    return tuple((rank, rank + 1) for rank in range(nranks - 1)) or ((0, 0),)


def schedules() -> Iterator[tuple[str, str, Schedule]]:
    """The first list, as (name, half, schedule)."""
    for where, placement in (PLACEMENTS | GATHERING).items():
        n = len(placement)
        for collective in COLLECTIVES:
            perm = permutation(n) if collective == "permute" else ()
            for algorithm in serving(collective):
                if algorithm in ("deterministic", "reproducible"):  # direct's schedules
                    continue
                for channels in CHANNELS.get(where, (1,)):
                    schedule = build(Spec(collective, n, algorithm, n // 2, channels, placement, perm))
                    if where in PLACEMENTS or schedule.group > 1:
                        yield f"{collective} {algorithm} {where} x{channels}", "both", schedule
        if where in GATHERING:
            continue
        # As in the planner, halves use messages only, even between ranks of one domain.
        spec = Spec("permute", n, "direct", perm=permutation(n))
        for half in ("send", "recv"):
            schedule = build_half(spec, half)
            spec = dataclasses.replace(spec, placement=placement)
            yield f"permute {half} {where}", half, dataclasses.replace(schedule, spec=spec)


def matrix() -> Iterator[tuple[str, str, Schedule]]:
    """The second list: all-reduces among processes of one rank each, and `direct` ones within a process."""
    for n in range(2, 9):
        for algorithm in MATRIX:
            placed = {f"{n}x1": tuple(range(n))} | ({f"1x{n}": (0,) * n} if algorithm == "direct" else {})
            for where, placement in placed.items():
                schedule = build(Spec("all_reduce", n, algorithm, n // 2, 1, placement))
                yield f"all_reduce {algorithm} {where} x1", "both", schedule


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<I{len(values)}i", len(values), *values)


def record(name: str, half: str, schedule: Schedule) -> bytes:
    spec = schedule.spec
    parts = [text(name), text(spec.collective), text(half)]
    blocks = schedule.in_blocks, schedule.out_blocks
    shape = (*blocks, schedule.pieces, schedule.nlanes, schedule.scratch_chunks, schedule.group)
    parts += [numbers([spec.root, *shape]), numbers(spec.placement), numbers([r for pair in spec.perm for r in pair])]
    for rank in range(spec.nranks):
        table = schedule.table(rank)
        parts += [struct.pack("<I", len(table.steps)), table.steps.tobytes()]
        parts += [numbers(table.lane_begin.tolist()), numbers(np.asarray(table.peers).tolist())]
    return b"".join(parts)


def main() -> None:
    lists = [[record(*item) for item in items] for items in (schedules(), matrix())]
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(b"JRSCHED3" + b"".join(struct.pack("<I", len(records)) + b"".join(records) for records in lists))
    print(f"{sum(map(len, lists))} schedules in {out}")


if __name__ == "__main__":
    main()
