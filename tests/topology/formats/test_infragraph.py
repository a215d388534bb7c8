"""InfraGraph: instances, components and edges as its own service expands them, and what is wrong in which line."""

from __future__ import annotations

import collections
import json

import pytest
import yaml

from jaxring.topology.fabric import VertexKind
from jaxring.topology.formats import reading
from tests import ROOT

EXAMPLE = ROOT / "examples/topology/two_servers.yaml"


def read(tmp_path, text: str) -> reading.Network:
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    return reading.read(path)


def pairs(found: reading.Network) -> set[tuple[str, str]]:
    names = [vertex.name for vertex in found.fabric.vertices]
    return {(names[link.source], names[link.target]) for link in found.fabric.links}


def test_our_example():
    """infragraph 3.1.0 makes 25 nodes and 32 edges of it."""
    found = reading.read(EXAMPLE)
    assert (len(found.fabric.vertices), len(found.fabric.links)) == (25, 64)
    ranks = [found.fabric.vertices[vertex] for vertex in found.fabric.ranks]
    assert [rank.name for rank in ranks] == [f"server.{i}.gpu.{j}" for i in range(2) for j in range(4)]
    assert found.groups == (0,) * 4 + (1,) * 4
    kinds = collections.Counter(vertex.kind for vertex in found.fabric.vertices)
    assert (kinds[VertexKind.NIC], kinds[VertexKind.CPU], kinds[VertexKind.SWITCH]) == (4, 2, 5)
    joined = pairs(found)
    assert ("server.1.nic.0", "switch.0.port.2") in joined
    assert ("server.0.gpu.2", "server.0.pcie.1") in joined
    assert ("server.0.gpu.2", "server.0.pcie.0") not in joined
    speeds = {link.kind: (link.gigabytes, link.latency) for link in found.fabric.links}
    assert speeds["ndr"] == (50.0, 1.5)
    assert speeds["pcie"] == (48.0, 1.0)
    # What a switch does not say limits nothing.
    assert speeds["inside (no limit)"][0] > sum(link.gigabytes for link in found.fabric.links if link.kind == "ndr")


def test_json(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(yaml.safe_load(EXAMPLE.read_text()), indent=1))
    assert reading.read(path).fabric == reading.read(EXAMPLE).fabric


NESTED = """
devices:
- name: card
  components: [{name: chip, choice: nic, count: 1}, {name: port, choice: port, count: 2}]
  links: [{name: l, physical: {bandwidth: {gigabytes_per_second: 10}}}]
  edges: [{ep1: {component: chip}, ep2: {component: port}, scheme: many2many, link: l}]
- name: host
  components: [{name: gpu, choice: xpu, count: 2}, {name: card, choice: device, count: 2}]
  links: [{name: l, physical: {bandwidth: {gigabytes_per_second: 20}, latency: {ms: 0.5}}}]
  edges:
  - {ep1: {component: gpu}, ep2: {device: card, component: chip}, scheme: one2one, link: l}
instances: [{name: h, device: host, count: 2}]
links: [{name: l, physical: {bandwidth: {gigabits_per_second: 8}}}]
edges:
- {ep1: {instance: "h[0]", component: "card[:].port[-1]"}, ep2: {instance: "h[1:]", component: "card.port[::2]"},
   scheme: one2one, link: l}
"""


def test_devices_in_devices(tmp_path):
    found = read(tmp_path, NESTED)
    joined = pairs(found)
    assert ("h.0.gpu.1", "h.0.card.1.chip.0") in joined
    assert ("h.1.card.0.chip.0", "h.1.card.0.port.1") in joined
    assert {pair for pair in joined if pair[0][:3] == "h.0" and pair[1][:3] == "h.1"} == {
        ("h.0.card.0.port.1", "h.1.card.0.port.0"),
        ("h.0.card.1.port.1", "h.1.card.1.port.0"),
    }
    assert {(link.gigabytes, link.latency) for link in found.fabric.links} == {(10.0, 0.0), (20.0, 500.0), (1.0, 0.0)}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("choice: xpu", "choice: nic", "line 2: no instance holds an xpu, so there are no ranks"),
        ("device: host", "device: hosts", "line 12: there is no device 'hosts'; there are card, host"),
        ("choice: device, count: 2", "choice: device, count: 0", "line 8: count is 0"),
        (
            "name: card, choice",
            "name: cord, choice",
            "line 7: host holds a device cord, which devices does not describe",
        ),
        ("name: card, choice", "name: host, choice", "line 7: the device host is a part of itself"),
        (
            "gigabytes_per_second: 20",
            "gigatransfers_per_second: 16",
            "line 9: bandwidth is in gigatransfers_per_second",
        ),
        ("gigabytes_per_second: 20", "gigabytes_per_second: 0", "line 9: bandwidth is not above 0"),
        ("gigabytes_per_second: 20", "gigabytes_per_second: fast", "line 9: gigabytes_per_second is 'fast': a number"),
        ("{bandwidth: {gigabits_per_second: 8}}", "{}", "line 15: the link l of this edge says no physical bandwidth"),
        ("component: gpu}", "component: gpus}", "line 11: host has no component 'gpus'; it has gpu, card"),
        ("device: card, component: chip", "component: card", "line 11: h.0.card.0 is a device"),
        ('"h[0]"', '"h[2]"', "line 15: 'h[2]' picks none of the 2 that h has"),
        ('"h[1:]"', '"h[2:]"', "line 15: 'h[2:]' picks none of the 2 that h has"),
        ('"h[1:]"', '"h[x]"', "line 15: 'h[x]' picks none"),
        ('"h[1:]"', '"g"', "line 15: there is no instance 'g'; there are h"),
        ("   scheme: one2one", "   scheme: ring", "line 16: scheme is 'ring', not one2one or many2many"),
        ("[{name: h, ", "[7, {name: h, ", "line 12: an entry of instances is no table"),
        (
            "instances: [{name: h, device",
            "instances: [{device",
            "line 12: there is no name: each of instances has a name",
        ),
    ],
)
def test_broken(tmp_path, old, new, why):
    assert old in NESTED
    with pytest.raises(ValueError) as caught:
        read(tmp_path, NESTED.replace(old, new))
    assert why in str(caught.value)
