"""Results as a table, as JSON, as a plot, and against an older run."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
from typing import TYPE_CHECKING

import jax
from rich.table import Table

from jaxring.bench.peers import find
from jaxring.bench.run import Result, as_json
from jaxring.bench.work import Case
from jaxring.sizes import shown
from jaxring.world.identity import version

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence


def table(results: Sequence[Result], copy_gbs: float) -> Table:
    """nccl-tests' columns, the choice made, the share of the memory's bound, and the ratio to ours."""
    first = results[0]
    rows = Table(
        title=f"{first.case.collective} {first.case.op} {first.case.dtype}, {first.processes} process(es) x "
        f"{first.devices} device(s)" + (f", {first.case.chain} in a chain" if first.case.chain > 1 else ""),
        caption=f"time: median of the slowest rank (quartiles). ratio: peer / jaxring. light: of the time that reading "
        f"and writing all buffers once would take at {copy_gbs:.1f} GB/s.",
    )
    for name in ("size", "peer"):
        rows.add_column(name, no_wrap=True)
    for name in ("count", "time us", "quartiles", "algbw GB/s", "busbw GB/s", "#wrong", "ratio", "light"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("choice", no_wrap=True)
    known = {(r.peer, r.case): r for r in results if r.times_us}
    for result in results:
        case = result.case
        size = shown(case.moved(result.ranks)) + (" in place" if case.inplace else "")
        if result.refused:
            rows.add_row(size, result.peer, *[""] * 8, result.refused)
            continue
        low, high = result.spread
        base = known.get((find(result.peer).ours, case))
        ratio = f"{result.median_us / base.median_us:.2f}" if base else ""
        rows.add_row(
            size,
            result.peer,
            str(case.count(result.ranks)),
            f"{result.median_us:.1f}",
            f"{low:.1f}..{high:.1f}",
            f"{result.algbw:.3f}",
            f"{result.busbw:.3f}",
            str(result.wrong) if case.chain == 1 else "",
            ratio,
            f"{100 * result.light(copy_gbs):.0f}%",
            result.choice,
        )
    return rows


def save(
    path: pathlib.Path, results: Sequence[Result], copy_gbs: float, command: Sequence[str], wire: str = ""
) -> None:
    """Everything that was measured, with what it was measured on. ``wire``: what joined hosts, in words."""
    data = {
        "command": ["jaxring", "bench", *command],
        "date": dt.date.today().isoformat(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "copy_gbs": copy_gbs,
            "wire": wire,
        },
        "versions": {
            "jaxring": version(),
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "python": platform.python_version(),
        },
    }
    # A line for each result: files of thousands of times are to be read, and compared by git.
    lines = ",\n".join(json.dumps(result, separators=(",", ":")) for result in as_json(results))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{json.dumps(data, indent=1)[:-2]},\n "results": [\n{lines}\n]}}\n')


def load(path: pathlib.Path) -> list[Result]:
    """The results of a saved run. ValueError where the file is none."""
    try:
        return [Result(**entry | {"case": Case(**entry["case"])}) for entry in json.loads(path.read_text())["results"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a file of jaxring bench --json: {error!r}") from None


def compare(old: Sequence[Result], new: Sequence[Result]) -> Table:
    """Ours then and now: as ratios to each peer measured in the same run, since machines differ from day to day."""
    rows = Table(title="compared with the older run: ratio of each peer's time to ours")
    for name in ("case", "peer"):
        rows.add_column(name)
    for name in ("then", "now", "change"):
        rows.add_column(name, justify="right")
    then, now = _ratios(old), _ratios(new)
    for key in now:
        if key in then:
            rows.add_row(key[0], key[1], f"{then[key]:.2f}", f"{now[key]:.2f}", f"{now[key] / then[key] - 1:+.0%}")
    return rows


def plot(path: pathlib.Path, results: Sequence[Result]) -> None:
    """busbw and time over size, a curve for each peer; the format is the suffix's."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    measured = [r for r in results if r.times_us]
    for peer in dict.fromkeys(r.peer for r in measured):
        for inplace in (False, True):
            own = [r for r in measured if r.peer == peer and r.case.inplace == inplace]
            if not own:
                continue
            x = [r.case.moved(r.ranks) for r in own]
            name, style = (f"{peer}, in place", "--") if inplace else (peer, "-")
            left.plot(x, [r.busbw for r in own], style, marker="o", markersize=3, label=name)
            line = right.plot(x, [r.median_us for r in own], style, marker="o", markersize=3, label=name)[0]
            low, high = zip(*(r.spread for r in own), strict=True)
            right.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    for axes, label in ((left, "busbw [GB/s]"), (right, "time [us], with quartiles")):
        axes.set(xscale="log", yscale="log", xlabel="size [B]", ylabel=label)
        axes.grid(True, which="major", alpha=0.3)
    left.legend()
    first = measured[0]
    figure.suptitle(
        f"{first.case.collective} {first.case.op} {first.case.dtype}, {first.processes} x {first.devices} ranks"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _ratios(results: Sequence[Result]) -> dict[tuple[str, str], float]:
    known = {(r.peer, r.processes, r.devices, r.case): r.median_us for r in results if r.times_us}
    found = {}
    for r in results:
        base = known.get((find(r.peer).ours, r.processes, r.devices, r.case))
        if r.peer != find(r.peer).ours and base and r.times_us:
            how = ", in place" if r.case.inplace else ""
            name = (
                f"{r.case.collective} {r.case.op} {r.case.dtype} {shown(r.case.nbytes)}{how}, {r.processes}x{r.devices}"
            )
            found[name, r.peer] = r.median_us / base
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
