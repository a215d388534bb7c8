"""`jaxring simulate`."""

from __future__ import annotations

import json
import sys
import types

import pytest

from jaxring.cli import main
from jaxring.plan.algorithms import build
from jaxring.plan.foreign import mscclpp_writer
from jaxring.plan.schedule import Spec
from jaxring.simulate.chakra import nodes
from jaxring.trace import flight
from tests import starting
from tests.cli.test_explain import OWN
from tests.plan.test_msccl import ring_all_reduce


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


def test_step(capsys, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(
        '[{"compute_us": 900}, {"collective": "all_reduce", "bytes": 65536}, {"compute_us": 9, "needs": [1]}]'
    )
    given = ["simulate", "--cluster", "ethernet-25g", "--nodes", "4", "--step", str(path)]
    assert main([*given, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert main([*given[:5], "--bytes", "64K", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)[0]["time_us"]
    assert step["exposed"] == pytest.approx(alone)
    assert step["step"] == pytest.approx(909 + alone)
    assert main(given) == 0
    assert "us are exposed" in capsys.readouterr().out
    path.write_text("[{}]")
    assert main(given) == 1
    assert "entry 0 of the step" in capsys.readouterr().err


def test_step_of_a_flight_record(capsys, tmp_path, monkeypatch):
    def record(launched: int, ended: int, label: str, state: str = "done"):
        return types.SimpleNamespace(launched=launched * 1000, ended=ended * 1000, label=label, state=state)

    label = json.dumps({"collective": "all_reduce", "nbytes": 65536})
    records = [record(0, 50, label), record(1050, 1100, label), record(1200, 0, label, "running"), record(1, 2, "{}")]
    monkeypatch.setattr(flight, "parse", lambda _: types.SimpleNamespace(records=records))
    path = tmp_path / "1.flight"
    path.write_bytes(flight.MAGIC)
    assert main(["simulate", "--cluster", "ethernet-25g", "--nodes", "4", "--step", str(path), "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert step["compute"] == 1000.0
    assert len(step["spans"]) == 3
    records.clear()
    assert main(["simulate", "--step", str(path)]) == 1
    assert "records no collective that has ended well" in capsys.readouterr().err


def test_step_written_as_chakra_and_read_again(capsys, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(
        '[{"compute_us": 90}, {"collective": "all_reduce", "bytes": 65536}, {"message": [3, 0], "bytes": 4096}, '
        '{"collective": "all_gather", "bytes": 64, "groups": [[0, 2], [1, 3]]}, {"compute_us": 9}, '
        '{"compute_us": 4, "needs": [1]}]'
    )
    given = ["simulate", "--cluster", "ethernet-25g", "--nodes", "4", "--json"]
    assert main([*given, "--step", str(path), "--chakra", str(tmp_path / "out" / "step")]) == 0
    step = json.loads(capsys.readouterr().out)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [f"step.{rank}.et" for rank in range(4)]
    trace = tmp_path / "out" / "step.3.et"
    assert main([*given, "--step", str(trace)]) == 0
    assert json.loads(capsys.readouterr().out) == step
    trace.write_bytes(trace.read_bytes()[:-1])
    assert main([*given, "--step", str(trace)]) == 1
    assert f"{trace}: byte " in capsys.readouterr().err


def test_collectives_of_a_part_of_the_ranks(capsys, tmp_path):
    members = '[\'[{"pg_name": "1", "ranks": [0, 2]}]\']'
    collective = {"comm_type": 0, "comm_size": 4096, "pg_name": "1"}
    trace = [
        nodes.Node(1, "groups", nodes.NodeType.METADATA_NODE, inputs=members),
        nodes.Node(2, "sum", nodes.NodeType.COMM_COLL_NODE, attributes=collective),
    ]
    path = tmp_path / "trace.0.et"
    path.write_bytes(nodes.write(trace))
    assert main(["simulate", "--cluster", "ethernet-25g", "--nodes", "4", "--step", str(path)]) == 0
    assert "all_reduce in 1 group of 2, 4 KiB (sum)" in capsys.readouterr().out
    assert main(["simulate", "--cluster", "ethernet-25g", "--nodes", "2", "--step", str(path)]) == 1
    assert "sum: group (0, 2) names rank 2, and there are the ranks 0..1." in capsys.readouterr().err


def test_a_schedule_as_chakra(capsys, tmp_path):
    given = ["--cluster", "ethernet-25g", "--nodes", "3", "--algorithm", "ring", "--chakra", str(tmp_path / "ring")]
    assert main(["simulate", *given]) == 0
    types = [node.type for node in nodes.read((tmp_path / "ring.2.et").read_bytes())]
    assert {nodes.NodeType.COMM_SEND_NODE, nodes.NodeType.COMM_RECV_NODE} <= set(types)
    assert main(["simulate", "--algorithm", "direct", "--chakra", str(tmp_path / "direct")]) == 1
    assert "Chakra does not know" in capsys.readouterr().err


def test_long_steps_are_printed_in_part(capsys, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(json.dumps([{"compute_us": us} for us in range(1, 61)]))
    assert main(["simulate", "--step", str(path)]) == 0
    said = capsys.readouterr().out
    assert "The longest 40 of 60 entries" in said


def test_a_plan_of_msccl(capsys, tmp_path):
    name, text = ring_all_reduce(8, 24)
    path = tmp_path / "ring.xml"
    path.write_text(text)
    assert main(["simulate", "--bytes", "16M", "--plan", str(path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)[0]
    assert main(["simulate", "--bytes", "16M", "--algorithm", "ring", "--json"]) == 0
    ring = json.loads(capsys.readouterr().out)[0]
    assert (plan["algorithm"], plan["time_us"]) == (name, ring["time_us"])
    assert main(["simulate", "--nodes", "2", "--plan", str(path)]) == 1
    assert "is for 8 ranks, not 16" in capsys.readouterr().err
    path.write_text("<algo")
    assert main(["simulate", "--plan", str(path)]) == 1
    assert "it is no XML" in capsys.readouterr().err


def test_an_algorithm_that_a_module_registers(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    command = [sys.executable, "-m", "jaxring.cli", "simulate", "--cluster", "ethernet-25g", "--nodes", "2", "--json"]
    command += ["--import", "mine", "--algorithm", "exchange,ring"]
    done = starting.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    own, ring = json.loads(done.stdout)
    assert (own["algorithm"], ring["algorithm"]) == ("exchange", "ring")
    # Whole inputs pass each other once; the ring's halves pass each other twice, in as many bytes.
    assert own["bus_gbs"] == pytest.approx(ring["bus_gbs"], rel=0.1)
    command[-1] = "failing"
    done = starting.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert 'mine.py", line 19, in failing\n' in done.stderr


def test_a_plan_of_mscclpp(capsys, tmp_path):
    """A ring that is written in MSCCL++'s form and read again takes the time of the ring."""
    ring = build(Spec("all_reduce", 8, "ring", channels=24))
    path = tmp_path / "ring.json"
    path.write_text(mscclpp_writer.text(ring).replace("jaxring_ring_all_reduce_8", "test_simulated_ring"))
    assert main(["simulate", "--bytes", "16M", "--plan", str(path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)[0]
    assert main(["simulate", "--bytes", "16M", "--algorithm", "ring", "--json"]) == 0
    ring = json.loads(capsys.readouterr().out)[0]
    assert (plan["algorithm"], plan["time_us"]) == ("test_simulated_ring", pytest.approx(ring["time_us"]))
    path.write_text('{"name": 1}')
    assert main(["simulate", "--plan", str(path)]) == 1
    assert f"{path}: the plan has no name of type str: 1" in capsys.readouterr().err


def test_goal(capsys, tmp_path):
    path = tmp_path / "out" / "ring.goal"
    given = ["--cluster", "ethernet-25g", "--nodes", "3", "--algorithm", "ring", "--goal", str(path)]
    assert main(["simulate", *given]) == 0
    assert path.read_text().startswith("num_ranks 3\n")
    assert main(["simulate", "--algorithm", "direct", "--goal", str(path)]) == 1
    assert "GOAL does not know" in capsys.readouterr().err


@pytest.mark.slow
def test_leaf_decides_about_symmetry(capsys):
    """With all hosts at the same first switches a ring of hosts is the same from each of them."""
    given = ["simulate", "--nodes", "64", "--algorithm", "hier_ring", "--channels", "1", "--json"]
    stand = []
    for more in ([], ["--leaf", "64"]):
        assert main([*given, *more]) == 0
        stand.append(json.loads(capsys.readouterr().out)[0]["how"])
    assert stand[0].startswith("shifts by 32 host(s)")
    assert stand[1].startswith("shifts by 1 host(s)")


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
