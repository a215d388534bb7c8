"""Draw all-reduces on a GPU over sizes: ours, NCCL's, `jnp`'s, and a copy of as many bytes.

    python -m benchmarks.gpu.plot FOLDER    # of the suite: reads its rows.jsonl, writes all_reduce.png

Needs matplotlib.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import summary
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


def curves(rows: Sequence[dict[str, Any]], ranks: int) -> dict[str, dict[int, float]]:
    """By whom: bytes -> microseconds of an all-reduce among so many ranks, launched by the host without waiting."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.get("ranks") != ranks or "us" not in row or "error" in row or row.get("what") == "to_one":
            continue
        if row["kind"] == "collective" and row["collective"] == "all_reduce":
            who = "jaxring"
            found.setdefault("a copy of as many bytes", {})[row["bytes"]] = row["copy_us"]
        elif row["kind"] == "nccl":
            who = f"NCCL {row['version'] // 10000}.{row['version'] // 100 % 100}.{row['version'] % 100}"
        elif row["kind"] == "jnp":
            who = "jnp on stacked arrays"
        else:
            continue
        mine = found.setdefault(who, {})
        mine[row["bytes"]] = min(row["us"], mine.get(row["bytes"], row["us"]))
    return found


def draw(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
    """A panel for each number of ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    counts = sorted({row["ranks"] for row in rows if row["kind"] == "collective"})
    (device,) = {row["name"] for row in rows if row["kind"] == "device"}
    figure, panels = plt.subplots(1, len(counts), figsize=(4.2 * len(counts), 3.8), sharey=True, squeeze=False)
    for ranks, panel in zip(counts, panels[0], strict=True):
        for who, times in sorted(curves(rows, ranks).items(), key=lambda item: item[0] != "jaxring"):
            sizes = sorted(times)
            style = {"linestyle": ":", "color": "gray"} if who.startswith("a copy") else {"marker": "o"}
            panel.plot(sizes, [times[size] for size in sizes], label=who, **style)
        panel.set(xscale="log", yscale="log", title=f"{ranks} ranks", xlabel="bytes of a rank's operand")
        panel.set_xticks(sizes, [shown(size) for size in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("microseconds, back to back")
    panels[0][0].legend()
    figure.suptitle(f"All-reduce of float32 among ranks that share one {device}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args(argv).folder
    draw(summary.read(folder)[1], folder / "all_reduce.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
