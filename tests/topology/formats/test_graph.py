"""NCCL's graph XML: read, written, refused."""

from __future__ import annotations

import pytest

from jaxring.errors import SettingsError
from jaxring.topology import xml
from jaxring.topology.formats import graph
from jaxring.topology.search.channels import channels
from jaxring.topology.search.rings import search
from jaxring.topology.wiring import wire
from tests.topology.machines import by_files, nvlink_machine, nvswitch_machine, pcie_machine, shared_files

FILE = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="1" nchannels="2" speedintra="20.5" speedinter="12" typeintra="NVL">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="0x1"/><net dev="1"/></channel>
    <channel><gpu dev="0x1"/><gpu dev="0"/></channel>
  </graph>
</graphs>"""


def test_a_file_is_read_and_written_back():
    (found,) = graph.parse(FILE.encode())
    assert found.channels == (graph.Channel((0, 1), (0, 1)), graph.Channel((1, 0)))
    assert (found.speed_intra, found.speed_inter, found.cross_nic) == (20.5, 12.0, 1)
    assert found.total == 41
    assert graph.parse(graph.text((found,)).encode()) == (found,)


@by_files("file", shared_files("**/*graph*.xml"))
def test_nccls_own_files_are_read_and_written_back(file):
    found = graph.read(str(file))
    assert graph.parse(graph.text(found).encode()) == found
    topology = next(each for each in file.parent.iterdir() if each.name == file.name.replace("graph", "topo"))
    graph.check(next(each for each in found if each.id == graph.RING_ID), xml.read(str(topology)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<graphs", "line 1: unclosed token"),
        ("<system/>", "line 1: the outermost element is <system> and not <graphs>"),
        (FILE.replace('nchannels="2"', 'nchannels="3"'), "line 2: a graph declares 3 channels and has 2"),
        (FILE.replace('speedintra="20.5"', 'speedintra="fast"'), "line 2: <graph speedintra='fast'> is no number"),
        (FILE.replace('speedintra="20.5"', 'speedintra="nan"'), "line 2: <graph speedintra='nan'> is no number"),
        (FILE.replace('<gpu dev="0"/></channel>', '<gpu dev="1"/></channel>'), "line 4: a channel visits a GPU twice"),
        (FILE.replace("</graphs>", '<graph id="0"/></graphs>'), "line 6: graph 0 is described twice"),
    ],
)
def test_what_is_no_graph_is_an_error(tmp_path, text, why):
    (tmp_path / "graph.xml").write_text(text)
    with pytest.raises(SettingsError, match=f"is no graph in NCCL's XML: {why}"):
        graph.read(str(tmp_path / "graph.xml"))
    with pytest.raises(SettingsError, match="cannot be read"):
        graph.read(str(tmp_path / "none.xml"))


def test_a_graph_has_to_fit_its_machine():
    (found,) = graph.parse(FILE.encode())
    graph.check(found, pcie_machine(2, nics=2))
    with pytest.raises(ValueError, match=r"channel 0 visits the GPUs 0, 1; the machine has 0, 1, 2"):
        graph.check(found, pcie_machine(3, nics=2))
    with pytest.raises(ValueError, match="channel 0 uses NIC 1, which the machine does not have"):
        graph.check(found, pcie_machine(2, nics=1))


def test_rings_become_graphs_with_numbers_of_devices():
    machine = nvlink_machine({(0, 1): 2, (1, 2): 2, (2, 0): 2}, 3)
    found = search(wire(machine))
    rings, trees = graph.from_rings(found, channels(found))
    assert (rings.id, rings.pattern, trees.id, trees.pattern) == (0, 4, 1, 1)
    assert rings.total == pytest.approx(80)
    assert {channel.gpus for channel in rings.channels} == {(0, 1, 2), (0, 2, 1)}
    assert (rings.type_intra, rings.type_inter) == ("NVL", "PIX")
    graph.check(rings, machine)


def test_rings_of_several_machines_name_their_nics():
    machine = nvswitch_machine(4, nics=2)
    found = search(wire(machine), machines=2)
    rings, _ = graph.from_rings(found, channels(found))
    assert {channel.nets for channel in rings.channels} == {(0, 0), (1, 1)}
    assert rings.type_inter in ("PIX", "PXN")
    graph.check(rings, machine)
    text = graph.text((rings,))
    assert text.index("<net") < text.index("<gpu") < text.rindex("<net")
