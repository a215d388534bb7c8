"""Training steps as Chakra traces: computations with their durations, collectives, and which of them needs which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jaxring.simulate import training
from jaxring.simulate.chakra.nodes import COLLECTIVES, Node, NodeType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAMES = {number: name for name, number in COLLECTIVES.items()}
_BARRIER = 9
# Nodes that take no time: what needs them needs what they need.
_EMPTY = (NodeType.INVALID_NODE, NodeType.METADATA_NODE)


def entries(nodes: Sequence[Node]) -> list[training.Entry]:
    """The step of a trace, in an order in which each entry stands behind all that it needs; to be played as one that
    is not ordered.

    Control dependencies are those of calls, not of data, and do not count. A collective's size is its input per rank.
    The ranks of its group are known where a metadata node lists PyTorch's process groups. Raises ValueError with the
    node for what cannot be simulated: sends, receives, remote memory, barriers, and nodes that need each other.
    """
    groups: dict[str, int] = {}
    for node in nodes:
        if node.type is NodeType.METADATA_NODE:
            groups |= _groups(node.inputs)
    made: list[training.Entry] = []
    stand: dict[int, tuple[int, ...]] = {}  # the positions that a node's dependents wait for
    for node in _sorted(nodes):
        needs = tuple(sorted({position for other in node.deps for position in stand[other]}))
        if node.type in _EMPTY:
            stand[node.id] = needs
            continue
        stand[node.id] = (len(made),)
        made.append(_entry(node, needs, groups))
    return made


def _entry(node: Node, needs: tuple[int, ...], groups: dict[str, int]) -> training.Entry:
    where = f"node {node.id} ({node.name})"
    if node.type is NodeType.COMP_NODE:
        return training.Compute(float(node.us), needs, bool(node.attributes.get("is_cpu_op", 0)), node.name)
    if node.type is not NodeType.COMM_COLL_NODE:
        raise ValueError(f"{where}: a step of computations and collectives has no {node.type.name}")
    kind, size = node.attributes.get("comm_type"), node.attributes.get("comm_size")
    if not isinstance(kind, int) or kind not in _NAMES:
        what = "a barrier" if kind == _BARRIER else f"a collective of comm_type {kind}"
        known = ", ".join(f"{number} ({name})" for number, name in _NAMES.items())
        raise ValueError(f"{where}: {what} cannot be simulated; these can: {known}")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{where}: its comm_size is {size}, not a number of bytes from 1")
    ranks = groups.get(str(node.attributes.get("pg_name", "")), 0)
    return training.Collective(_NAMES[kind], size, "", needs, ranks, node.name)


def _groups(text: str) -> dict[str, int]:
    """How many ranks each process group has, 0 for all of them; ``text`` is a list of one text, in Python's form."""
    try:
        data = json.loads(text[2:-2])
        return {str(group["pg_name"]): len(group["ranks"]) for group in data}
    except (KeyError, TypeError, ValueError):
        return {}  # metadata of another kind


def _sorted(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes, each behind those that it needs, and otherwise in the order of the file."""
    by_id = {node.id: node for node in nodes}
    done: set[int] = set()
    for first in nodes:
        path: list[tuple[Node, Iterator[int]]] = []
        open_: set[int] = set()
        if first.id not in done:
            path.append((first, iter(first.deps)))
            open_.add(first.id)
        while path:
            node, left = path[-1]
            other = next((each for each in left if each not in done), None)
            if other is None:
                path.pop()
                done.add(node.id)
                open_.discard(node.id)
                yield node
            elif other in open_:
                ids = [each.id for each, _ in path]
                circle = [*ids[ids.index(other) :], other]
                raise ValueError(f"nodes need each other: {' needs '.join(map(str, circle))}")
            else:
                path.append((by_id[other], iter(by_id[other].deps)))
                open_.add(other)


def nodes(step: Sequence[training.Entry], ordered: bool = True) -> list[Node]:
    """The nodes of a step. Their durations are whole us; what rounding takes from one is added to the next.

    Raises ValueError for a collective that Chakra has not.
    """
    needs = training.waits(step) if ordered else [entry.needs for entry in step]
    made: list[Node] = []
    left = 0.0
    for position, entry in enumerate(step):
        if isinstance(entry, training.Compute):
            us = round(entry.us + left)
            left += entry.us - us
            attributes: dict[str, int | str] = {"is_cpu_op": entry.host}
            node = Node(
                position, entry.name or f"compute_{position}", NodeType.COMP_NODE, needs[position], us, attributes
            )
            made.append(node)
            continue
        if entry.collective not in COLLECTIVES:
            raise ValueError(f"Chakra has no {entry.collective}; it has {', '.join(COLLECTIVES)}")
        attributes = {"is_cpu_op": False, "comm_type": COLLECTIVES[entry.collective], "comm_size": entry.nbytes}
        name = entry.name or f"{entry.collective}_{position}"
        made.append(Node(position, name, NodeType.COMM_COLL_NODE, needs[position], 0, attributes))
    return made
