"""The described clusters: each number has a source, and the routes by arithmetic are shortest ways."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import tomllib

import pytest

from jaxring.simulate import clusters
from jaxring.simulate.network import Network

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
