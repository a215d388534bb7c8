"""What the record of a fabric refuses."""

from __future__ import annotations

import pytest

from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind

_TWO = (Vertex("a", VertexKind.RANK), Vertex("b", VertexKind.RANK))


def test_ranks_are_counted_in_their_order() -> None:
    vertices = (_TWO[0], Vertex("switch", VertexKind.NVSWITCH), _TWO[1])
    fabric = Fabric(vertices, (Link(0, 1, 50.0, 0.5, "nvlink"), Link(1, 2, 50.0, 0.5, "nvlink")))
    assert fabric.ranks == (0, 2)
    assert fabric.leaving == ((0,), (1,), ())


@pytest.mark.parametrize(
    ("source", "target", "gigabytes", "latency"),
    [(0, 0, 1.0, 0.0), (-1, 0, 1.0, 0.0), (0, 1, 0.0, 0.0), (0, 1, 1.0, -1)],
)
def test_a_link_that_cannot_be_is_refused(source: int, target: int, gigabytes: float, latency: float) -> None:
    with pytest.raises(ValueError, match="a link"):
        Link(source, target, gigabytes, latency, "net")


def test_a_fabric_names_each_vertex_once_and_links_only_what_is_there() -> None:
    with pytest.raises(ValueError, match="one name"):
        Fabric((_TWO[0], _TWO[0]), ())
    with pytest.raises(ValueError, match="vertex 2 of 2"):
        Fabric(_TWO, (Link(0, 2, 1.0, 0.0, "net"),))
