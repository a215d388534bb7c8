"""Times and bus bandwidths over sizes as a picture, a curve for each algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from jaxring.simulate.run import Run


def plot(path: pathlib.Path, runs: Sequence[Run]) -> None:
    """Draws runs of one cluster and collective; the format is the suffix's. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    sizes = sorted({run.nbytes for run in runs})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for algorithm, ranks in dict.fromkeys((run.algorithm, run.ranks) for run in runs):
        own = sorted((r for r in runs if (r.algorithm, r.ranks) == (algorithm, ranks)), key=lambda run: run.nbytes)
        x, label = [run.nbytes for run in own], f"{algorithm}, {ranks} ranks"
        left.plot(x, [run.bus_gbs for run in own], marker="o", markersize=3, label=label)
        right.plot(x, [run.time_us for run in own], marker="o", markersize=3, label=label)
    for axes, label in ((left, "busbw [GB/s]"), (right, "time [us]")):
        axes.set(xscale="log", yscale="log", xlabel="bytes of input per rank", ylabel=label)
        axes.set_xticks(sizes, [shown(size) for size in sizes], rotation=45)
        axes.xaxis.minorticks_off()
        axes.grid(True, which="major", alpha=0.3)
    left.legend()
    left.set_title(f"{runs[0].cluster}: {runs[0].collective}, simulated", loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
