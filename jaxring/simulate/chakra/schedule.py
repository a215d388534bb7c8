"""Schedules as Chakra traces, a trace for each rank: sends, receives and calculations, as ASTRA-sim reads collectives
that it has not itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.simulate import operations
from jaxring.simulate.chakra.nodes import Node, NodeType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.plan.schedule import Schedule
    from jaxring.simulate.tile_sizes import Sizes

_TYPES = {"send": NodeType.COMM_SEND_NODE, "recv": NodeType.COMM_RECV_NODE}


def by_rank(schedule: Schedule, sizes: Sizes, copy: float = 0.0) -> Iterator[list[Node]]:
    """The nodes of rank 0, of rank 1, and so on. Tags are lanes.

    ``copy``: us for each byte that a step reads. Durations are whole us: a calculation is written when those since the
    last one have come to one. Raises ValueError for a schedule that goes by memory.
    """
    return (_nodes(rank, made) for rank, made in enumerate(operations.by_rank(schedule, sizes, copy, "Chakra")))


def _nodes(rank: int, made: list[operations.Operation]) -> list[Node]:
    nodes: list[Node] = []
    stand: list[tuple[int, ...]] = []  # the ids that stand for each operation
    left: dict[int, float] = {}
    for each in made:
        deps = tuple(dict.fromkeys(number for position in each.after for number in stand[position]))
        number, name = len(nodes), f"{each.kind}_lane{each.lane}_{len(nodes)}"
        attributes: dict[str, int | str] = {"is_cpu_op": False}
        if each.kind == "calc":
            total = left.get(each.lane, 0.0) + each.us
            us = int(total)
            left[each.lane] = total - us
            if not us:
                stand.append(deps)
                continue
            nodes.append(Node(number, name, NodeType.COMP_NODE, deps, us, attributes))
        else:
            ends = {"comm_src": rank, "comm_dst": each.peer}
            if each.kind == "recv":
                ends = {"comm_src": each.peer, "comm_dst": rank}
            attributes |= {"comm_size": each.nbytes, **ends, "comm_tag": each.lane}
            nodes.append(Node(number, name, _TYPES[each.kind], deps, 0, attributes))
        stand.append((number,))
    return nodes
