"""Training steps as Chakra traces: computations with their durations, collectives, messages, and which of them needs
which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jaxring.simulate import training
from jaxring.simulate.chakra.nodes import COLLECTIVES, Node, NodeType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAMES = {number: name for name, number in COLLECTIVES.items()}
_BARRIER = 9
# The name of the node in which PyTorch lists the process groups.
_LISTS_GROUPS = "## process_group:init ##"
# Nodes that take no time: what needs them needs what they need.
_EMPTY = (NodeType.INVALID_NODE, NodeType.METADATA_NODE)


def entries(nodes: Sequence[Node]) -> list[training.Entry]:
    """The step of a trace, in an order in which each entry stands behind all that it needs; to be played as one that
    is not ordered.

    Control dependencies are those of calls, not of data, and do not count. A collective's size is its input per rank.
    The ranks of its group are those that a metadata node lists, as PyTorch's traces have it; group "0" is all ranks.
    Raises ValueError with the node for what cannot be simulated: remote memory, barriers, groups that are not listed,
    and nodes that need each other.
    """
    groups: dict[str, tuple[int, ...]] = {"": (), "0": ()}
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


def _entry(node: Node, needs: tuple[int, ...], groups: dict[str, tuple[int, ...]]) -> training.Entry:
    where = f"node {node.id} ({node.name})"
    if node.type is NodeType.COMP_NODE:
        return training.Compute(float(node.us), needs, bool(node.attributes.get("is_cpu_op", 0)), node.name)
    size = node.attributes.get("comm_size")
    if node.type in (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE):
        source, target = node.attributes.get("comm_src"), node.attributes.get("comm_dst")
        if not isinstance(source, int) or not isinstance(target, int) or source == target or min(source, target) < 0:
            raise ValueError(f"{where}: its comm_src and comm_dst are {source} and {target}, not two ranks")
        received = node.type is NodeType.COMM_RECV_NODE
        return training.Message(_bytes(where, size), source, target, needs, received, node.name)
    if node.type is not NodeType.COMM_COLL_NODE:
        raise ValueError(f"{where}: a step of computations, collectives and messages has no {node.type.name}")
    kind = node.attributes.get("comm_type")
    if not isinstance(kind, int) or kind not in _NAMES:
        what = "a barrier" if kind == _BARRIER else f"a collective of comm_type {kind}"
        known = ", ".join(f"{number} ({name})" for number, name in _NAMES.items())
        raise ValueError(f"{where}: {what} cannot be simulated; these can: {known}")
    nbytes = _bytes(where, size)
    group = str(node.attributes.get("pg_name", ""))
    if group not in groups:
        listed = ", ".join(sorted(groups.keys() - {"", "0"})) or "none"
        raise ValueError(f"{where}: no metadata node lists the ranks of its process group {group}; listed: {listed}")
    members = (groups[group],) if groups[group] else ()
    return training.Collective(_NAMES[kind], nbytes, "", needs, members, node.name)


def _bytes(where: str, size: object) -> int:
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{where}: its comm_size is {size}, not a number of bytes from 1")
    return size


def _groups(text: str) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group, () for all ranks; ``text`` is a list of one text, in Python's form."""
    try:
        data = json.loads(text[2:-2])
        return {str(group["pg_name"]): tuple(int(rank) for rank in group["ranks"]) for group in data}
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


def nodes(step: Sequence[training.Entry], ordered: bool = True, rank: int = 0) -> list[Node]:
    """The nodes of a step for ``rank``. Durations are whole us; what rounding takes from one is added to the next.

    Groups are process groups as PyTorch's traces list them, in a metadata node. A collective or message in which the
    rank has no part has no node: what needs it needs what it needs. Raises ValueError for a collective that Chakra has
    not.
    """
    needs = training.waits(step) if ordered else [entry.needs for entry in step]
    names = _names(step)
    own = {group: name for group, name in names.items() if rank in group}
    made: list[Node] = []
    stand: list[tuple[int, ...]] = []
    left = 0.0
    for position, entry in enumerate(step):
        deps = tuple(dict.fromkeys(number for other in needs[position] for number in stand[other]))
        if isinstance(entry, training.Compute):
            us = round(entry.us + left)
            left += entry.us - us
            name = entry.name or f"compute_{position}"
            node: Node | None = Node(position, name, NodeType.COMP_NODE, deps, us, {"is_cpu_op": entry.host})
        elif isinstance(entry, training.Message):
            node = _message(position, entry, deps, rank)
        else:
            node = _collective(position, entry, deps, own, len(step))
        stand.append((position,) if node is not None else deps)
        made += [node] if node is not None else []
    if own:
        listed = [{"pg_name": name, "ranks": list(group)} for group, name in own.items()]
        inputs = f"['{json.dumps(listed)}']"
        made.insert(0, Node(len(step), _LISTS_GROUPS, NodeType.METADATA_NODE, inputs=inputs))
    return made


def _names(step: Sequence[training.Entry]) -> dict[tuple[int, ...], str]:
    """A name for each group, the same in all ranks' traces. 0 is the group of all ranks, which needs none."""
    groups = dict.fromkeys(g for entry in step if isinstance(entry, training.Collective) for g in entry.groups)
    return {group: str(number) for number, group in enumerate(groups, 1)}


def _message(position: int, entry: training.Message, deps: tuple[int, ...], rank: int) -> Node | None:
    if rank not in (entry.source, entry.target):
        return None
    kind = NodeType.COMM_SEND_NODE if rank == entry.source else NodeType.COMM_RECV_NODE
    attributes: dict[str, int | str] = {"is_cpu_op": False, "comm_size": entry.nbytes}
    attributes |= {"comm_src": entry.source, "comm_dst": entry.target, "comm_tag": 0}
    return Node(position, entry.name or f"message_{position}", kind, deps, 0, attributes)


def _collective(
    position: int, entry: training.Collective, deps: tuple[int, ...], own: dict[tuple[int, ...], str], metadata: int
) -> Node | None:
    """``own``: the names of the rank's groups, which the node ``metadata`` lists."""
    if entry.collective not in COLLECTIVES:
        raise ValueError(f"Chakra has no {entry.collective}; it has {', '.join(COLLECTIVES)}")
    attributes: dict[str, int | str] = {"is_cpu_op": False, "comm_type": COLLECTIVES[entry.collective]}
    attributes["comm_size"] = entry.nbytes
    if entry.groups:
        name = next((own[group] for group in entry.groups if group in own), None)
        if name is None:
            return None
        attributes["pg_name"] = name
        deps = (*deps, metadata)
    return Node(position, entry.name or f"{entry.collective}_{position}", NodeType.COMM_COLL_NODE, deps, 0, attributes)
