"""What `jaxring topo` says of paths, rings and bounds, and what it writes."""

from __future__ import annotations

import collections
import json
import re
import xml.etree.ElementTree as ET

import pytest

from jaxring.cli import main
from jaxring.plan import user
from jaxring.plan.foreign import reading
from jaxring.plan.schedule import Spec
from jaxring.topology import xml
from jaxring.topology.formats import graph
from tests import ROOT
from tests.topology.machines import nvswitch_machine, pcie_machine

SOCKETS = str(ROOT / "examples/topology/two_sockets.xml")
SMALL = str(ROOT / "examples/topology/four_gpus.xml")
MESH = str(ROOT / "examples/topology/nvlink_mesh.xml")
SVG = "{http://www.w3.org/2000/svg}"


def topo(*arguments: str) -> int:
    return main(["topo", *arguments])


@pytest.fixture
def file(tmp_path):
    """Writes a machine's file, and gives its name."""

    def write(machine, name="machine.xml"):
        (tmp_path / name).write_text(xml.text(machine))
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("options", [["--gpus", "0,1"], ["--paths", "--steps", "9"], ["--json", "--plan", "x"]])
def test_an_option_that_would_have_no_effect_is_refused(options, capsys):
    assert topo("--file", SOCKETS, *options) == 1
    assert capsys.readouterr().err.startswith("jaxring topo: --")


@pytest.mark.parametrize("options", [["--json", "--plan", "x"], ["--steps", "9"]])
def test_so_it_is_of_a_network(options, capsys):
    assert topo("--file", str(ROOT / "examples/topology/two_servers.yaml"), *options) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("jaxring topo: --")
    assert "is for a machine" not in said


def test_json_has_what_the_tables_show(capsys):
    assert topo("--file", SOCKETS, "--json", "--rings") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"] == [*(f"GPU{i}" for i in range(8)), "mlx5_0", "mlx5_1"]
    assert {"from": "GPU0", "to": "GPU4", "type": "SYS", "gigabytes": 10.0} in found["paths"]
    assert found["rings"]["bus_gigabytes"] == pytest.approx(10)
    assert found["rings"]["bound_bus_gigabytes"] == 17.5
    for trees in ("all_reduce_trees", "all_gather_trees"):
        assert found[trees]["share"] == pytest.approx(1)
        assert all(tree["parents"].count(-1) == 1 for tree in found[trees]["trees"])
        assert found[trees]["ranks"] == [f"GPU{i}" for i in range(8)]
    assert found["bottleneck"]["ranks"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert found["bottleneck"]["links"] == [{"from": "CPU1", "to": "CPU0", "kind": "cpu", "gigabytes": 10.0}]
    assert len(found["rings"]["filled"]) == 2
    assert topo("--file", SOCKETS, "--json") == 0
    assert "rings" not in json.loads(capsys.readouterr().out)


def test_a_search_whose_steps_ran_out_says_so(capsys):
    assert topo("--file", MESH, "--rings", "--steps", "0") == 0
    out = capsys.readouterr().out
    row = next(row for row in out.splitlines() if row.startswith("rings "))
    assert "160" in row
    assert "the best of 0 steps, not proven" in row


def test_rings_over_several_machines_name_their_nics(file, capsys):
    assert topo("--file", file(nvswitch_machine(4, nics=2)), "--rings", "--machines", "2") == 0
    out = capsys.readouterr().out
    assert "on 2 such machines" in out
    rows = [row.split()[1:] for row in out.splitlines() if "mlx5_" in row and "GPU" in row]
    rows = [row for row in rows if row[0].startswith("mlx5_")]
    assert {(row[0], row[-1]) for row in rows} == {("mlx5_0", "mlx5_0"), ("mlx5_1", "mlx5_1")}


def test_a_search_says_how_long_it_took(capsys):
    assert topo("--file", MESH, "--rings") == 0
    assert re.search(r"^Searched for \d+\.\d\d s of CPU time\.$", capsys.readouterr().out, re.MULTILINE)
    assert topo("--file", MESH, "--rings", "--json") == 0
    assert json.loads(capsys.readouterr().out)["searched_seconds"] > 0


def test_some_gpus_of_a_machine(capsys):
    """Two that 40 GB/s join, and two that 80 join."""
    assert topo("--file", MESH, "--rings", "--gpus", "0,2") == 0
    out = capsys.readouterr().out
    assert "All ranks among GPU0, GPU2 on this machine" in out
    assert "Bottleneck: what has to enter GPU0 goes by GPU2 -> GPU0 (40 GB/s)." in out
    assert "GPU1" not in out
    assert topo("--file", MESH, "--rings", "--gpus", "0,1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    for each in (found["rings"], found["all_reduce_trees"], found["all_gather_trees"]):
        assert (each["bus_gigabytes"], each["bound_bus_gigabytes"]) == (pytest.approx(80), pytest.approx(80))
    assert topo("--file", MESH, "--rings", "--gpus", "0,7") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "--gpus names GPU 7, which this machine does not have. There are: 0, 1, 2, 3." in said


def test_trees_are_saved_as_a_schedule_that_can_be_simulated(tmp_path, capsys):
    plan = str(tmp_path / "trees.json")
    assert topo("--file", SOCKETS, "--plan", plan) == 0
    assert "an all-reduce of 8 ranks by" in capsys.readouterr().out
    assert main(["simulate", "--cluster", "hgx-h100", "--plan", plan, "--bytes", "1M", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["collective"], run["ranks"], run["algorithm"]) == ("all_reduce", 8, "jaxring_trees_all_reduce_8")


def test_the_ranks_of_saved_trees_are_in_the_order_of_the_gpus(tmp_path, capsys):
    """GPU0 has 80 GB/s to GPU1 and 40 to GPU2: a plan of any order joins the same GPUs."""
    joined = []
    for gpus in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        plan = tmp_path / "trees.json"
        assert topo("--file", MESH, "--plan", str(plan), "--gpus", ",".join(map(str, gpus))) == 0
        assert "an all-reduce of 3 ranks in the order of --gpus by" in capsys.readouterr().out
        name, _ = reading.register(plan.read_text().replace("jaxring_trees", f"test_trees_{gpus[0]}"))
        schedule = user.build_user(Spec("all_reduce", 3, name))
        steps = [(rank, step) for rank in range(3) for lane in schedule.lanes(rank) for step in lane]
        joined.append(collections.Counter((gpus[rank], gpus[to.rank]) for rank, step in steps for to in step.send))
    assert joined[0] == joined[1] == joined[2]
    assert len(set(joined[0].values())) > 1  # else any order would do


def test_a_graph_is_written_and_compared(tmp_path, file, capsys):
    written = str(tmp_path / "rings.xml")
    assert topo("--file", MESH, "--graph", written) == 0
    assert "8 channels of 20 GB/s" in capsys.readouterr().out
    assert graph.read(written)[0].total == pytest.approx(160)
    assert topo("--file", MESH, "--compare", written) == 0
    assert "100.0% of the bound" in capsys.readouterr().out
    assert topo("--file", file(pcie_machine(2)), "--compare", written) == 1
    assert "is no graph of this machine: channel 0 visits the GPUs 0, 1, 2, 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "arguments", "why"),
    [
        (pcie_machine(1), ["--rings"], "a ring needs two ranks, and there are 1"),
        (pcie_machine(2), ["--rings", "--machines", "2"], "a ring over several machines needs a NIC"),
        (pcie_machine(2), ["--graph", "/nonexistent/rings.xml"], "cannot be written: No such file or directory"),
        (pcie_machine(2), ["--compare", "/nonexistent/rings.xml"], "cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said(machine, arguments, why, file, capsys):
    assert topo("--file", file(machine), *arguments) == 1
    assert why in capsys.readouterr().err


def test_a_drawing_has_devices_speeds_rings_and_the_bottleneck(tmp_path):
    assert topo("--file", SOCKETS, "--rings", "--svg", str(tmp_path / "drawn.svg")) == 0
    drawn = ET.parse(tmp_path / "drawn.svg").getroot()
    texts = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"GPU0", "GPU7", "CPU1", "mlx5_1", "10", "24", "ring 1: GPUs 0 1 2 3 4 5 6 7, 10 GB/s"} <= texts
    red = [path.get("d", "") for path in drawn.iter(f"{SVG}path") if path.get("stroke") == "#d32f2f"]
    assert len(red) == 1  # the link between the CPUs
    arcs = [path for path in drawn.iter(f"{SVG}path") if path.get("stroke") == "#0b6bcb"]
    assert len(arcs) == 8
    assert topo("--file", SOCKETS, "--svg", str(tmp_path / "plain.svg")) == 0
    plain = ET.parse(tmp_path / "plain.svg").getroot()
    assert not [path for path in plain.iter(f"{SVG}path") if path.get("stroke") in ("#d32f2f", "#0b6bcb")]


def test_a_drawing_of_one_of_several_machines_has_the_way_from_port_to_port(tmp_path):
    assert topo("--file", SOCKETS, "--machines", "2", "--rings", "--svg", str(tmp_path / "drawn.svg")) == 0
    drawn = ET.parse(tmp_path / "drawn.svg").getroot()
    texts = [text.text or "" for text in drawn.iter(f"{SVG}text")]
    (ring,) = [text for text in texts if text.startswith("ring 1: in by mlx5_")]
    assert re.search(r"GPUs( \d){8}, out by mlx5_", ring)
    assert "One of 2 such machines." in texts
    arcs = [path for path in drawn.iter(f"{SVG}path") if path.get("stroke") == "#0b6bcb"]
    assert len(arcs) == 9  # from a port through eight GPUs to a port
    # Each NIC's port has 25 GB/s, and the link between the CPUs 10.
    red = [each for each in drawn.iter() if each.get("stroke") == "#d32f2f"]
    assert red


def test_everything_in_a_drawing_lies_within_it(tmp_path, file):
    for number, machine in enumerate((nvswitch_machine(8, nics=2), pcie_machine(6, cpus=3), pcie_machine(2))):
        target = tmp_path / f"{number}.svg"
        assert topo("--file", file(machine), "--rings", "--svg", str(target)) == 0
        drawn = ET.parse(target).getroot()
        width, height = float(drawn.get("width", "0")), float(drawn.get("height", "0"))
        for box in drawn.iter(f"{SVG}rect"):
            left, top = float(box.get("x", "0")), float(box.get("y", "0"))
            assert 0 <= left <= width - float(box.get("width", "0"))
            assert 0 <= top <= height - float(box.get("height", "0"))
        assert all(0 <= float(text.get("y", "-1")) <= height for text in drawn.iter(f"{SVG}text"))


def test_machines_that_differ_are_joined(capsys):
    assert topo("--file", SOCKETS, "--join", SMALL, "--join", SOCKETS, "--rings") == 0
    out = capsys.readouterr().out
    order = re.search(r"^10 +(0/GPU.*)$", out, re.MULTILINE)
    assert order
    assert [stop.split("/")[0] for stop in order[1].split()] == ["0"] * 8 + ["1"] * 4 + ["2"] * 8
    # The link between the CPUs of the larger ones has 10 GB/s, and the NIC of the small one 12.
    assert re.search(r"^rings +10 ", out, re.MULTILINE)
    assert "Bottleneck: what has to" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--join: --join is of machines that differ"),
        (["--rings", "--svg", "x.svg"], "--svg: --join is of machines that differ"),
        (["--rings", "--machines", "2"], "--machines: --join is of machines that differ"),
        (["--rings", "--join", MESH], f"There are no rings through the machine from {MESH}: a ring over several"),
    ],
)
def test_what_joins_no_machines_is_an_error(options, said, capsys):
    assert topo("--file", SOCKETS, "--join", SMALL, *options) == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_network(capsys, tmp_path):
    network = str(ROOT / "examples/topology/two_servers.yaml")
    assert topo("--file", network, "--rings") == 0
    out = capsys.readouterr().out
    assert "ranks 8, groups of ranks 2, switches and other parts 17" in out
    assert "trees (all_reduce)" in out
    assert "Bottleneck: what has to enter server.1.gpu.0" in out
    assert topo("--file", network, "--rings", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"kind": "ndr", "gigabytes": 50.0, "us": 1.5, "count": 4} in found["links"]
    # Two NICs of 48 GB/s behind PCIe lead out of each server, and 7/8 of 8 ranks' data is counted as bus bandwidth.
    assert found["trees (all_reduce)"]["bound"] == found["trees (all_gather)"]["bus"] == pytest.approx(2 * 48 * 7 / 4)
    for option in (["--paths"], ["--svg", "x.svg"], ["--machines", "2"]):
        assert topo("--file", network, *option) == 1
        assert f"{option[0]} is for a machine; {network} describes" in capsys.readouterr().err
    broken = tmp_path / "network.yml"
    broken.write_text("topology: [ Ring ]\nnpus_count: [ two ]\n")
    assert topo("--file", str(broken)) == 1
    assert f"{broken}, line 1: there is no bandwidth" in capsys.readouterr().err
