"""A picture of many ratios: a bar for each program and peer, a panel for each size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.bench.peers import find
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from jaxring.bench.run import Result


def plot(path: pathlib.Path, title: str, results: Sequence[Result]) -> None:
    """Each peer's time over ours, from 1 up where we are faster; the format is the suffix's."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    times = {(r.peer, r.case.name, r.case.nbytes): r.median_us for r in results if r.times_us}
    sizes = sorted({nbytes for _, _, nbytes in times})
    names = list(dict.fromkeys(name for _, name, _ in times))
    peers = [peer for peer in dict.fromkeys(peer for peer, _, _ in times) if find(peer).ours != peer]
    figure, grid = plt.subplots(
        1, len(sizes), figsize=(3.2 * len(sizes), 4), layout="constrained", sharey=True, squeeze=False
    )
    for nbytes, axes in zip(sizes, grid[0], strict=True):
        for i, peer in enumerate(peers):
            height = 0.8 / len(peers)
            have = [(n, name) for n, name in enumerate(names) if (peer, name, nbytes) in times]
            ratios = [times[peer, name, nbytes] / times[find(peer).ours, name, nbytes] for _, name in have]
            # On a logarithmic axis bars begin at 1.
            axes.barh([n + i * height for n, _ in have], [r - 1 for r in ratios], height, left=1, label=peer)
        axes.set(xscale="log", xlabel="time / ours", title=shown(nbytes))
        axes.set_yticks([n + 0.4 - 0.4 / len(peers) for n in range(len(names))], names)
        axes.axvline(1, color="black", linewidth=1)
        axes.grid(True, axis="x", which="major", alpha=0.3)
    grid[0][0].invert_yaxis()
    grid[0][-1].legend()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
