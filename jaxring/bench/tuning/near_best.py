"""Whether the tuner's choices are near the best: calibrated once, then measured anew on sizes between, too."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from jaxring.bench.tuning.calibrate import calibrated, measure_all
from jaxring.plan.profile_file import COMMODITY
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxring.bench.hosts import Hosts
    from jaxring.bench.tuning.calibrate import Measurements
    from jaxring.bench.tuning.cell import Layout, Own
    from jaxring.plan.profile import Profile

# A choice is right where it takes at most so much of the time of the best candidate.
NEAR = 1.10
# So many of the calibrated profile's choices have to be right.
ENOUGH = 0.9
# How many of the cells are listed one by one.
WORST = 10


@dataclasses.dataclass(frozen=True)
class Judged:
    """One cell: what was chosen, what was fastest, and the ratio of their measured times, at least 1."""

    layout: Layout
    what: str
    chosen: str
    best: str
    ratio: float


def judge(profile: Profile, measured: Measurements) -> Iterator[Judged]:
    """Each cell that has more than one candidate, by the choice of ``profile``."""
    for layout, times, processors in measured:
        for cell, found in times.items():
            if len(cell.candidates) < 2:
                continue
            choice = layout.choose(cell.collective, cell.nbytes, processors, profile, cell.own)
            by_name = {"/".join(names): us for names, us in zip(cell.candidates, found, strict=True)}
            chosen = f"{choice.algorithm}/{choice.protocol}"
            best = min(by_name, key=by_name.__getitem__)
            what = f"{cell.collective} of {shown(cell.nbytes)}, {layout}"
            yield Judged(layout, what, chosen, best, by_name[chosen] / by_name[best])


def check(layouts: Sequence[Layout], sizes: Sequence[int], hosts: Hosts | None, own: Own) -> tuple[list[str], bool]:
    """Calibrates from nothing on every other size, measures all of them anew, and says how the choices did.

    Also returns whether enough of them were right.
    """
    begun = time.monotonic()
    profile = calibrated(COMMODITY, measure_all(layouts, sizes[::2], hosts, own))
    took = time.monotonic() - begun
    again = measure_all(layouts, sizes, hosts, own)
    lines = [f"calibrated in {took:.0f} s on {len(sizes[::2])} of {len(sizes)} sizes"]
    for name, each in (("commodity", COMMODITY), ("calibrated", profile)):
        cells = list(judge(each, again))
        if not cells:
            return [*lines, "no cell has more than one candidate"], True
        lines.append(f"profile {name}: within {NEAR - 1:.0%} of the best candidate in {_near(cells)}")
    if len(layouts) > 1:
        lines += [f"  {layout}: {_near(of)}" for layout in layouts if (of := [c for c in cells if c.layout == layout])]
    worst = sorted((cell for cell in cells if cell.ratio > NEAR), key=lambda cell: -cell.ratio)[:WORST]
    lines += [f"  {cell.what}: {cell.chosen} takes {cell.ratio:.2f} of {cell.best}" for cell in worst]
    return lines, sum(cell.ratio <= NEAR for cell in cells) >= ENOUGH * len(cells)


def _near(cells: Sequence[Judged]) -> str:
    near = sum(cell.ratio <= NEAR for cell in cells)
    return f"{near} of {len(cells)} cells ({near / len(cells):.0%})"
