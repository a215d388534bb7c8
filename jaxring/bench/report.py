"""Results as rows of a table, as JSON, as CSV, as a plot, and against an older run."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.metadata
import io
import json
import math
import os
import platform
import textwrap
from typing import TYPE_CHECKING, Any

import jax

from jaxring.bench import table
from jaxring.bench.peers import find
from jaxring.bench.programs import Program
from jaxring.bench.run import Result, as_json
from jaxring.bench.work import Case
from jaxring.settings.sizes import shown
from jaxring.world.identity import version

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence


# More labels of sizes than these run into each other.
_MOST_TICKS = 7
# What a row has to say, by worth. Between the first columns and the last one, which is text, stand numbers.
_NUMBERS = (("time us", 10, 100), ("busbw GB/s", 8, 70), ("ratio", 6, 80), ("#wrong", 6, 75), ("quartiles", 17, 40))
_MORE = (("algbw GB/s", 8, 30), ("light", 5, 20), ("count", 10, 10))
# What a whole program has not.
_OF_COLLECTIVES = frozenset({"busbw GB/s", "algbw GB/s", "light", "count"})
_CHOICE = table.Column("choice", 16, 60, text=True)
_CSV = (
    *("what", "processes", "devices", "bytes", "in place", "chain", "peer", "time us", "first quartile us"),
    *("third quartile us", "ratio", "algbw GB/s", "busbw GB/s", "light", "count", "wrong", "choice", "refused"),
)
_LEGEND = {
    "time us": "time: median of the slowest rank",
    "quartiles": "quartiles: of that",
    "ratio": "ratio: peer / jaxring, above 1 where jaxring is faster",
    "light": "light: share of the time that reading and writing all buffers once would take at {copy:.1f} GB/s",
}


def rows(cases: Sequence[Case | Program], peers: Sequence[str], width: int) -> table.Table:
    """A table for these peers on these cases, in lines of ``width`` characters (0: any); `row` makes its lines."""
    longest = "1.001 KiB in place" if any(case.inplace for case in cases) else "1.001 KiB"
    size, peer = table.Column("size", len(longest), text=True), table.Column("peer", max(map(len, peers)), text=True)
    numbers = [table.Column(name, wide, worth) for name, wide, worth in _NUMBERS + _MORE]
    if all(isinstance(case, Program) for case in cases):
        numbers = [column for column in numbers if column.name not in _OF_COLLECTIVES]
    return table.Table([size, peer, *numbers, _CHOICE], width)


def title(result: Result) -> str:
    """What was measured, but for its size."""
    chain = f", {result.case.chain} in a chain" if result.case.chain > 1 else ""
    processes = f"{result.processes} process{'es' * (result.processes > 1)}"
    return f"{result.case.what}, {processes} x {result.devices} device{'s' * (result.devices > 1)}{chain}"


def caption(made: table.Table, copy_gbs: float) -> list[str]:
    """What the columns mean, in lines."""
    meanings = [_LEGEND[column.name] for column in made.columns if column.name in _LEGEND]
    return textwrap.wrap("; ".join(meanings).format(copy=copy_gbs) + ".", made.width or 120)


def row(made: table.Table, results: Sequence[Result], result: Result, copy_gbs: float) -> str:
    """A line: nccl-tests' columns, the choice made, the share of the memory's bound, and the ratio to ours.

    ``results``: those of the same case, ours among them.
    """
    case = result.case
    cells = {"size": shown(case.moved(result.ranks)) + " in place" * case.inplace, "peer": result.peer}
    if result.refused:
        return made.note(cells, result.refused)
    low, high = result.spread
    ratio = _to_ours(result, results)
    if isinstance(case, Case):
        cells |= {
            "count": str(case.count(result.ranks)),
            "algbw GB/s": f"{result.algbw:.3f}",
            "busbw GB/s": f"{result.busbw:.3f}",
            "light": f"{100 * result.light(copy_gbs):.0f}%",
        }
    cells |= {
        "time us": f"{result.median_us:.1f}",
        "quartiles": f"{low:.1f}..{high:.1f}",
        "#wrong": str(result.wrong) if case.checked else "",
        "ratio": "" if math.isnan(ratio) else f"{ratio:.2f}",
        "choice": result.choice,
    }
    return made.row(cells)


def save(
    path: pathlib.Path | None, results: Sequence[Result], copy_gbs: float, command: Sequence[str], wire: str = ""
) -> None:
    """Everything that was measured, with what it was measured on; to stdout where ``path`` is None.

    ``command``: what was run. ``wire``: what joined hosts, in words.
    """
    data = {
        "command": list(command),
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
    text = f'{json.dumps(data, indent=1)[:-2]},\n "results": [\n{lines}\n]}}\n'
    if path is None:
        print(text, end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def save_csv(path: pathlib.Path | None, measured: Sequence[Sequence[Result]], copy_gbs: float) -> None:
    """A row for each result, under a header, with all columns of the tables as numbers; to stdout where ``path`` is
    None. A cell is empty where it has no meaning: of a whole program, and of a peer that does not serve the case.

    ``measured``: the results of each table. A ratio is to ours of the same table.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_CSV)
    for result, together in ((result, results) for results in measured for result in results):
        case = result.case
        cells: list[object] = [case.what, result.processes, result.devices, case.moved(result.ranks)]
        cells += [int(case.inplace), case.chain, result.peer]
        if result.refused:
            lines.writerow([*cells, *[""] * (len(_CSV) - len(cells) - 1), result.refused])
            continue
        ratio = _to_ours(result, together)
        cells += [result.median_us, *result.spread, "" if math.isnan(ratio) else ratio]
        if isinstance(case, Case):
            cells += [result.algbw, result.busbw, result.light(copy_gbs), case.count(result.ranks)]
        else:
            cells += [""] * 4
        lines.writerow([*cells, result.wrong if case.checked else "", result.choice, ""])
    if path is None:
        print(text.getvalue(), end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue())


def load(path: pathlib.Path) -> list[Result]:
    """The results of a saved run. ValueError where the file is none."""
    try:
        return [Result(**entry | {"case": _case(entry["case"])}) for entry in json.loads(path.read_text())["results"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a file of jaxring bench --json: {error!r}") from None


def _case(fields: dict[str, Any]) -> Case | Program:
    return Program(**fields) if "program" in fields else Case(**fields)


def compare(old: Sequence[Result], new: Sequence[Result], width: int = 0) -> list[str]:
    """Ours then and now: as ratios to each peer measured in the same run, since machines differ from day to day.

    Lines of a table, or a sentence where the runs have no case in common.
    """
    then, now = _ratios(old), _ratios(new)
    if not then.keys() & now.keys():
        found = [", ".join(" to ".join(key) for key in list(ratios)[:2]) or "none" for ratios in (then, now)]
        sentence = "Nothing to compare: no ratio of a peer's time to ours is in both runs. "
        return [f"{sentence}The older one begins with {found[0]}; this one with {found[1]}."]
    columns = [table.Column(name, 0, text=True) for name in ("case", "peer")]
    columns += [table.Column(name, 0) for name in ("then", "now", "change")]
    both = [
        (*key, f"{then[key]:.2f}", f"{now[key]:.2f}", f"{now[key] / then[key] - 1:+.0%}") for key in now if key in then
    ]
    return ["Compared with the older run: ratio of each peer's time to ours.", *table.rows(columns, both, width)]


def plot(path: pathlib.Path, results: Sequence[Result]) -> None:
    """busbw and time over size, a curve for each peer; a row of both for each collective on each layout.

    Of whole programs the ratio to ours takes the place of busbw. The format is the suffix's.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    series: dict[str, list[Result]] = {}
    for result in results:
        if result.times_us:
            series.setdefault(title(result), []).append(result)
    if not series:
        return
    figure, grid = plt.subplots(len(series), 2, figsize=(11, 4.2 * len(series)), layout="constrained", squeeze=False)
    for (what, own), (left, right) in zip(series.items(), grid, strict=True):
        _draw(own, left, right)
        left.set_title(what, loc="left")
        left.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw(results: Sequence[Result], left: Any, right: Any) -> None:
    """Curves of one collective on one layout."""
    for peer, inplace in dict.fromkeys((r.peer, r.case.inplace) for r in results):
        own = [r for r in results if (r.peer, r.case.inplace) == (peer, inplace)]
        own.sort(key=lambda r: r.case.moved(r.ranks))  # with -r sizes come again
        x = [r.case.moved(r.ranks) for r in own]
        of_programs = isinstance(own[0].case, Program)
        y = [_to_ours(r, results) if of_programs else r.busbw for r in own]
        name, style = (f"{peer}, in place", "--") if inplace else (peer, "-")
        left.plot(x, y, style, marker="o", markersize=3, label=name)
        line = right.plot(x, [r.median_us for r in own], style, marker="o", markersize=3, label=name)[0]
        low, high = zip(*(r.spread for r in own), strict=True)
        right.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    sizes = sorted({r.case.moved(r.ranks) for r in results})
    sizes = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    figure = "time / ours" if isinstance(results[0].case, Program) else "busbw [GB/s]"
    for axes, label in ((left, figure), (right, "time [us], with quartiles")):
        axes.set(xscale="log", yscale="log", xlabel="size", ylabel=label)
        axes.set_xticks(sizes, [shown(size) for size in sizes])
        axes.xaxis.minorticks_off()  # the other axis may span less than a decade
        axes.grid(True, which="major", alpha=0.3)


def _to_ours(result: Result, results: Sequence[Result]) -> float:
    """A result's time over ours of the same case; not a number where ours has none."""
    ours = find(result.peer).ours
    alike = (r for r in results if (r.case, r.processes, r.devices) == (result.case, result.processes, result.devices))
    return result.median_us / next((r.median_us for r in alike if r.peer == ours and r.times_us), math.nan)


def _ratios(results: Sequence[Result]) -> dict[tuple[str, str], float]:
    known = {(r.peer, r.processes, r.devices, r.case): r.median_us for r in results if r.times_us}
    found = {}
    for r in results:
        base = known.get((find(r.peer).ours, r.processes, r.devices, r.case))
        if r.peer != find(r.peer).ours and base and r.times_us:
            how = " in place" if r.case.inplace else ""
            found[f"{title(r)}, {shown(r.case.nbytes)}{how}", r.peer] = r.median_us / base
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
