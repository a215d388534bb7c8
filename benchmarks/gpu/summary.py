"""Writes SUMMARY.md from what the suite has left in a folder so far. Needs the standard library only, as it does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

Row = dict[str, Any]
_BIG, _SMALL = 256 << 20, 32 << 10


def read(folder: pathlib.Path) -> tuple[list[Row], list[Row]]:
    """The stages and the rows in ``folder``; a line that was cut off is left out."""
    stages, rows = folder / "stages.json", []
    measured = folder / "rows.jsonl"
    for line in measured.read_text().splitlines() if measured.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return (json.loads(stages.read_text()) if stages.exists() else []), rows


def summary(stages: list[Row], rows: list[Row]) -> str:
    """The text: how the stages ended, what was asked for and what was found, and all times."""
    lines = ["# The CUDA engine on a GPU", ""]
    lines += [f"Device: {row['name']}, {row['multiprocessors']} SMs." for row in rows if row["kind"] == "device"][:1]
    lines += ["", "| stage | ended |", "|---|---|"]
    for stage in stages:
        how = stage.get("left_out") or f"exit {stage['exit']}, {stage['seconds']} s"
        lines.append(f"| {stage['stage']} | {how}{', cut off' if stage.get('cut_off') else ''} |")
    lines += ["", "| asked for | found |", "|---|---|"]
    lines += [f"| {what} | {found} |" for what, found in _targets(rows)]
    lines += ["", "| collective | way | ranks | bytes | lanes | us | waited us | busbw GB/s | of a copy |"]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|--:|"]
    lines += [_line(row) for row in rows if row["kind"] == "collective"]
    lines += ["", "In one CUDA graph, without the host's work:", ""]
    lines += ["| collective | way | ranks | bytes | lanes | us | over empty us | busbw GB/s | of a copy |"]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|--:|"]
    lines += [_line(row) for row in rows if row["kind"] == "graph"]
    lines += ["", "| peer, or what is left out | ranks | bytes | us |", "|---|--:|--:|--:|"]
    for row in rows:
        if row["kind"] in ("jnp", "nccl", "nvls"):
            name = " ".join(str(row[key]) for key in ("kind", "what", "version") if key in row)
            found = row.get("left_out") or row.get("error") or f"{row['us']:.1f}"
            lines.append(f"| {name} | {row.get('ranks', '')} | {row.get('bytes', '')} | {found} |")
    if calls := [row for row in rows if row["kind"] == "jax"]:
        lines += ["", "All-reduces that follow one another in a program under JAX, a process for each rank:", ""]
        lines += ["| processes | MPS | bytes | calls in a program | us for one | way |", "|--:|---|--:|--:|--:|---|"]
        for row in calls:
            head = f"| {row['processes']} | {'yes' if row['mps'] else 'no'} | {row['bytes']} | {row['calls']} | "
            lines.append(head + f"{row['us']:.1f} | {row['plan']} |")
    return "\n".join(lines) + "\n"


def busbw(row: Row) -> float:
    """GB/s as nccl-tests counts it: what a link would have to carry."""
    n = row["ranks"]
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(row["collective"], (n - 1) / n)
    return float(row["bytes"] / row["us"] / 1e3 * factor)


def _way(row: Row) -> str:
    fused = f" fused {row['fused']}" if row["fused"] >= 0 else ""
    return f"{row['algorithm']}/{row['protocol']}{fused}{' bulk' if row.get('bulk') else ''}"


def _line(row: Row) -> str:
    head = f"| {row['collective']} | {_way(row)} | {row['ranks']} | {row['bytes']} | "
    if "error" in row:
        return head + f"{row['error']} |"
    share = 100 * row["copy_us"] / row["us"]
    second = row["us"] - row["empty_us"] if row["kind"] == "graph" else row["waited_us"]
    return head + f"{row['lanes']} | {row['us']:.1f} | {second:.1f} | {busbw(row):.1f} | {share:.0f}% |"


def _best(rows: list[Row], ranks: int, nbytes: int, key: str = "us", kind: str = "collective") -> Row | None:
    """The fastest all-reduce."""
    found = [
        row
        for row in rows
        if row["kind"] == kind
        and "error" not in row
        and (row["collective"], row["ranks"], row["bytes"]) == ("all_reduce", ranks, nbytes)
    ]
    return min(found, key=lambda row: float(row[key]), default=None)


def _targets(rows: list[Row]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for ranks in (2, 4, 8):
        row = _best(rows, ranks, _BIG)
        what = f"all-reduce of 256 MiB, {ranks} ranks: at least 85% of a copy of as many bytes"
        found.append((what, f"{100 * row['copy_us'] / row['us']:.0f}% ({_way(row)})" if row else "not measured"))
    # More ranks on one GPU share its memory: among 8, a copy has 328 GB/s of bus bandwidth on an H100.
    if row := _best(rows, 2, _BIG):
        what = f"a rank on {row['lanes']} SMs, 2 ranks: at least 450 GB/s bus bandwidth"
        found.append((what, f"{busbw(row):.0f} GB/s"))
    row = _best(rows, 8, _SMALL, kind="graph")
    what = "all-reduce of 32 KiB, 8 ranks, in a graph: at most 5 us over an empty launch"
    found.append(
        (what, f"{row['us'] - row['empty_us']:.1f} us over {row['empty_us']:.1f} us" if row else "not measured")
    )
    for key, how in (("us", "one after another"), ("waited_us", "waited for")):
        row = _best(rows, 8, _SMALL, key)
        what = f"the same {how}, with the host's launches of 8 ranks by one thread: no bar"
        text = f"{row[key]:.1f} us; empty launches {row[f'empty_{key}']:.1f} us" if row else "not measured"
        if row and f"alike_{key}" in row:
            text += f", of as many blocks {row[f'alike_{key}']:.1f} us"
        found.append((what, text))
    slower = []
    for peer in rows:
        if peer["kind"] not in ("jnp", "nccl") or "us" not in peer or peer.get("what") == "to_one":
            continue
        row = _best(rows, peer["ranks"], peer["bytes"])
        if row:
            slower.append((peer["us"] / row["us"], peer["kind"], peer["ranks"], peer["bytes"]))
    for kind in ("jnp", "nccl"):
        ratios = [each for each in slower if each[1] == kind]
        worst = min(ratios, default=None)
        text = f"{worst[0]:.2f} times at worst ({worst[2]} ranks, {worst[3]} bytes)" if worst else "not measured"
        found.append((f"faster than {kind} at every size", text))
    return found


def write(folder: pathlib.Path) -> None:
    """Writes it beside what it says it of."""
    (folder / "SUMMARY.md").write_text(summary(*read(folder)))
