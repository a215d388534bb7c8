"""ASTRA-sim's network files: every topology link by link, and what is wrong in which line."""

from __future__ import annotations

import pathlib

import pytest

from jaxring.topology.formats import reading
from tests import ROOT

# examples/network/analytical/HGX-H100-validated.yml of ASTRA-sim.
HGX_H100 = "topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 400.0 ]  # GB/s\nlatency: [ 936.25 ]  # ns\n"
GIB = (1 << 30) / 1e9


def read(tmp_path: pathlib.Path, text: str) -> reading.Network:
    path = tmp_path / "network.yml"
    path.write_text(text)
    return reading.read(path)


def network(tmp_path: pathlib.Path, kinds: str, counts: str) -> reading.Network:
    number = len(counts.split(","))
    numbers = ", ".join(str(10 * (i + 1)) for i in range(number))
    return read(
        tmp_path, f"topology: [{kinds}]\nnpus_count: [{counts}]\nbandwidth: [{numbers}]\nlatency: [{numbers}]\n"
    )


def pairs(found: reading.Network, kind: str) -> set[tuple[str, str]]:
    """The names at the ends of the links of a dimension, which all go both ways."""
    names = [vertex.name for vertex in found.fabric.vertices]
    links = {(names[link.source], names[link.target]) for link in found.fabric.links if link.kind == kind}
    assert links == {(b, a) for a, b in links}
    assert len(links) == sum(link.kind == kind for link in found.fabric.links)
    return {(a, b) for a, b in links if a < b}


def test_a_switch(tmp_path):
    found = read(tmp_path, HGX_H100)
    assert pairs(found, "dim0") == {(f"npu{i}", "switch0.0") for i in range(8)}
    assert {(link.gigabytes, link.latency) for link in found.fabric.links} == {(400 * GIB, 0.93625)}
    assert found.groups == (0,) * 8


def test_rings_and_pairs(tmp_path):
    assert pairs(network(tmp_path, "Ring", "4"), "dim0") == {
        ("npu0", "npu1"), ("npu1", "npu2"), ("npu2", "npu3"), ("npu0", "npu3")
    }  # fmt: skip
    assert pairs(network(tmp_path, "Ring", "2"), "dim0") == {("npu0", "npu1")}
    assert len(pairs(network(tmp_path, "FullyConnected", "5"), "dim0")) == 10


def test_dimensions(tmp_path):
    """Two NPUs around each of 3 switches, and a ring through the first ones, and one through the second ones."""
    found = network(tmp_path, "Switch, Ring", "2, 3")
    assert pairs(found, "dim0") == {(f"npu{i}", f"switch0.{i // 2 * 2}") for i in range(6)}
    assert pairs(found, "dim1") == {
        ("npu0", "npu2"), ("npu2", "npu4"), ("npu0", "npu4"), ("npu1", "npu3"), ("npu3", "npu5"), ("npu1", "npu5")
    }  # fmt: skip
    assert found.groups == (0, 0, 1, 1, 2, 2)
    assert {link.latency for link in found.fabric.links if link.kind == "dim1"} == {0.02}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("npus_count: [ 8 ]\n", "", "line 1: there is no npus_count: a list with an entry for each dimension"),
        ("[ 8 ]", "8", "line 2: npus_count is 8: a list"),
        ("[ 8 ]", "[ 8, 2 ]", "line 2: npus_count has 2 entries, and topology 1"),
        ("[ 8 ]", "[ 1 ]", "line 2: npus_count is 1, not a whole number from 2"),
        ("[ 8 ]", "[ 100000 ]", "line 2: it describes 100000 NPUs"),
        ("Switch", "Torus", "line 1: there is no topology 'Torus'; there are Ring, FullyConnected, Switch"),
        ("400.0", "tbd", "line 3: bandwidth is 'tbd', not a number of GB/s above 0"),
        ("400.0", "0", "line 3: bandwidth is 0"),
        ("936.25", "-1", "line 4: latency is -1"),
        ("936.25", ".inf", "line 4: latency is inf"),
        ("latency", "bandwidth", "line 4: bandwidth stands twice in one mapping"),
        ("[ 936.25 ]", "[ 936.25", "network.yml, line 5: "),
        ("topology: [ Switch ]\nnpus_count", "npus", "line 1: it is neither a network file of ASTRA-sim's"),
        ("936.25", "&a [ *a ]", "line 4: an alias stands inside what it stands for"),
    ],
)
def test_broken(tmp_path, old, new, why):
    assert old in HGX_H100
    with pytest.raises(ValueError) as caught:
        read(tmp_path, HGX_H100.replace(old, new))
    assert why in str(caught.value)
    assert str(tmp_path / "network.yml") in str(caught.value)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        reading.read(tmp_path / "none.yml")
    (tmp_path / "bytes.yml").write_bytes(b"topology: \xff")
    with pytest.raises(ValueError, match="is no text"):
        reading.read(tmp_path / "bytes.yml")
    with pytest.raises(ValueError, match="line 1: it is neither"):
        read(tmp_path, "")


def test_our_example():
    found = reading.read(ROOT / "examples/topology/hgx_h100.yml")
    assert len(found.groups) == 16
