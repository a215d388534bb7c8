"""The described clusters: each number has a source, and the routes by arithmetic are shortest ways."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import tomllib

import pytest

from jaxring.simulate import clusters
from jaxring.simulate.links.network import Network
from jaxring.simulate.run import simulate
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from tests import ROOT

NAMES = ("hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "nvl72", "p4d", "p5", "nd-v4", "nd-v5", "ethernet-25g")
FOLDER = pathlib.Path(clusters.__file__).parent


def numbers(data: dict, where: str = ""):
    for key, value in data.items():
        if isinstance(value, dict) and "value" not in value:
            yield from numbers(value, f"{where}{key}.")
        elif where:
            yield f"{where}{key}", value


@pytest.mark.parametrize("name", clusters.names())
def test_each_number_has_a_source_and_is_read(name):
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    cluster = clusters.load(name)
    for where, value in numbers(data):
        assert value.keys() == {"value", "source"}, where
        assert cluster.sources[where] == value["source"], f"{where} is not read"


def test_all_are_there():
    assert set(NAMES) <= set(clusters.names())


@pytest.mark.parametrize("name", clusters.names())
def test_routes_are_shortest(name):
    cluster = dataclasses.replace(clusters.load(name), leaf=2)
    network = cluster.build(5, "simple")
    search = Network(network.fabric)
    links, ranks = network.fabric.links, network.fabric.ranks
    last = len(ranks) - 1
    for source, target in ((0, last), (last, 0), (0, min(1, last)), (0, cluster.ranks), (last, cluster.ranks)):
        if source == target:
            continue
        way = network.route(source, target)
        assert links[way[0]].source == ranks[source]
        assert links[way[-1]].target == ranks[target]
        assert all(links[a].target == links[b].source for a, b in itertools.pairwise(way))
        assert network.latency(way) == pytest.approx(search.latency(search.route(source, target)))


def test_unknown_and_broken(tmp_path):
    with pytest.raises(ValueError, match="there is no cluster 'hgx-h99'; there are ethernet-1g"):
        clusters.load("hgx-h99")
    path = tmp_path / "mine.toml"
    text = (FOLDER / "hgx-h100.toml").read_text()
    path.write_text(text.replace('{ value = 370.8, source = "18', '{ value = 370.8, why = "18'))
    with pytest.raises(ValueError, match=r"mine: \[inside\] gigabytes is not"):
        clusters.load(str(path))
    path.write_text("[host\n")
    with pytest.raises(ValueError, match=r"mine.toml: .*line 1"):
        clusters.load(str(path))


def ways(network: Network, source: int, target: int) -> list[str]:
    fabric = network.fabric
    return [fabric.vertices[fabric.links[link].target].name for link in network.route(source, target)]


def test_routes_through_ranks_and_not():
    """Three ranks in a row."""
    vertices = tuple(Vertex(f"r{i}", VertexKind.RANK, i) for i in range(3))
    links = [Link(*ends, 1.0, 1.0, "net") for ends in ((0, 1), (1, 0), (1, 2), (2, 1))]
    fabric = Fabric(vertices, tuple(links))
    assert ways(Network(fabric, through_ranks=True), 0, 2) == ["r1", "r2"]
    with pytest.raises(ValueError, match="no links lead from r0 to r2"):
        Network(fabric).route(0, 2)


def test_routes_that_are_alike_are_shared_out():
    """Four ranks around two first switches, which two others join; a third one is slower, and not used."""
    names = ["r0", "r1", "r2", "r3", "leaf0", "leaf1", "spine0", "spine1", "spine2"]
    kinds = [VertexKind.RANK] * 4 + [VertexKind.SWITCH] * 5
    joined = [(i, 4 + i // 2, 2.0) for i in range(4)]
    joined += [(leaf, spine, 1.0 if spine == 8 else 2.0) for leaf in (4, 5) for spine in (6, 7, 8)]
    links = [Link(*ends, speed, 1.0, "net") for a, b, speed in joined for ends in ((a, b), (b, a))]
    vertices = tuple(Vertex(name, kind) for name, kind in zip(names, kinds, strict=True))
    network = Network(Fabric(vertices, tuple(links)))
    assert {ways(network, 0, target)[1] for target in (2, 3)} == {"spine0", "spine1"}
    assert ways(network, 1, 2) == ways(network, 0, 2)


@pytest.mark.parametrize(("file", "ranks"), [("hgx_h100.yml", 16), ("two_servers.yaml", 8)])
def test_networks_that_files_of_others_describe(file, ranks):
    """All ranks are there, and memory within a machine brings a hierarchical ring ahead of one through all."""
    cluster = clusters.load(str(ROOT / "examples/topology" / file))
    runs = {name: simulate(cluster, 1, "all_reduce", 64 << 20, name) for name in ("ring", "hier_ring")}
    assert {run.ranks for run in runs.values()} == {ranks}
    assert runs["hier_ring"].time_us < runs["ring"].time_us
    assert simulate(cluster, 1, "all_reduce", 4, "hier_ring").time_us > 2 * cluster.models["simple"].memory > 0
    with pytest.raises(ValueError, match=f"describes all of its {ranks} ranks; --nodes is for clusters by name"):
        simulate(cluster, 2, "all_reduce", 64, "ring")


def test_only_reductions_cast_their_results():
    with pytest.raises(ValueError, match=r"result='bfloat16' is for reductions, .* all_gather reduces nothing"):
        simulate(clusters.load("hgx-h100"), 1, "all_gather", 64, "ring", result="bfloat16")
