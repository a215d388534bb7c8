"""`jaxring simulate`."""

from __future__ import annotations

import json

import pytest

from jaxring.cli import main


def test_table_and_critical_path(capsys):
    assert main(["simulate", "--cluster", "hgx-h100", "--bytes", "1M", "--algorithm", "ring,tree"]) == 0
    said = capsys.readouterr().out
    assert "ring/simple, 24 channel(s)" in said
    assert "tree/simple, 24 channel(s)" in said
    assert "Critical path of the last run: " in said


def test_json_trace_and_plot(capsys, tmp_path):
    trace, plot = tmp_path / "out" / "trace.json", tmp_path / "out" / "plot.svg"
    given = ["--cluster", "ethernet-25g", "--nodes", "2,4", "--bytes", "64K,1M", "--algorithm", "ring", "--json"]
    assert main(["simulate", *given, "--trace", str(trace), "--plot", str(plot)]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [(run["ranks"], run["nbytes"]) for run in runs] == [(2, 65536), (2, 1 << 20), (4, 65536), (4, 1 << 20)]
    # The path and the rest make up the time.
    assert sum(runs[-1]["critical_path_us"].values()) == pytest.approx(runs[-1]["time_us"])
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert max(span["ts"] + span["dur"] for span in spans) == pytest.approx(runs[-1]["time_us"], abs=0.01)
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert "critical path" in processes
    assert plot.read_bytes().startswith(b"<?xml")


def test_the_planner_chooses(capsys):
    assert main(["simulate", "--nodes", "2", "--json", "--bytes", "1M"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["algorithm"].startswith("hier_")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--cluster", "hgx-h99"], "there is no cluster 'hgx-h99'"),
        (["--protocol", "llx"], "hgx-h100 has no protocol 'llx'; there are simple, ll, ll128"),
        (["--algorithm", "pxn"], "does not serve all_reduce"),
        (["--link", "h0n0:leaf0.0"], "is not FROM:TO:US:SHARE"),
        (["--cluster", "ethernet-25g", "--nodes", "4", "--death", "2:100"], "rank 2, lane 0, step 1 has died"),
        (["--death", "99:100"], "there is no rank 99"),
    ],
)
def test_errors(given, why, capsys):
    assert main(["simulate", *given]) == 1
    assert why in capsys.readouterr().err
