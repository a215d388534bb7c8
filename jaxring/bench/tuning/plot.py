"""What was measured, and what the prices that were fitted to it predict, as a picture."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.bench.tuning.cell import COLLECTIVES
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from jaxring.bench.tuning.calibrate import Measurements
    from jaxring.bench.tuning.cell import Layout
    from jaxring.plan.profile import Profile

_MOST_TICKS = 5
Points = list[tuple[int, float]]


def plot(path: pathlib.Path, measured: Measurements, profile: Profile) -> None:
    """A row for each layout and a column for each collective: dots are medians, lines what ``profile`` predicts.

    The lines are of the prices alone, without the profile's own table of measured times. The format is the suffix's.
    Needs matplotlib.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    prices = dataclasses.replace(profile, measured=())
    shape = (len(measured), len(COLLECTIVES))
    figure, grid = plt.subplots(*shape, figsize=(3.6 * shape[1], 3.2 * shape[0]), layout="constrained", squeeze=False)
    colours: dict[str, Any] = collections.defaultdict(lambda: f"C{len(colours) % 10}")
    for (layout, times, processors), row in zip(measured, grid, strict=True):
        for collective, axes in zip(COLLECTIVES, row, strict=True):
            found: dict[str, Points] = collections.defaultdict(list)
            for cell, each in times.items():
                for names, us in zip(cell.candidates, each, strict=True):
                    if cell.collective == collective:
                        found["/".join(names)].append((cell.nbytes, us))
            _draw(axes, found, _predicted(layout, collective, found, processors, prices), colours)
            axes.set_title(f"{collective}, {layout}", fontsize=9)
        row[0].set_ylabel("time [us]")
    handles = [Line2D([], [], color=colour, marker="o", markersize=3, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _predicted(
    layout: Layout, collective: str, found: dict[str, Points], processors: int, prices: Profile
) -> dict[str, Points]:
    predicted: dict[str, Points] = collections.defaultdict(list)
    own = {name.split("/")[0] for name in found} - {*ALGORITHMS}
    for nbytes in sorted({nbytes for points in found.values() for nbytes, _ in points}):
        for name, us in layout.choose(collective, nbytes, processors, prices, sorted(own)).candidates:
            predicted[name].append((nbytes, us))
    return predicted


def _draw(axes: Any, found: dict[str, Points], predicted: dict[str, Points], colours: dict[str, Any]) -> None:
    for name, points in found.items():
        axes.plot(*zip(*sorted(points), strict=True), "o", markersize=3, color=colours[name])
        if predicted[name]:
            axes.plot(*zip(*predicted[name], strict=True), linewidth=1, color=colours[name])
    sizes: Sequence[int] = sorted({nbytes for points in found.values() for nbytes, _ in points})
    ticks = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ticks, [shown(size) for size in ticks], fontsize=8)
    axes.xaxis.minorticks_off()
    axes.grid(True, which="major", alpha=0.3)
