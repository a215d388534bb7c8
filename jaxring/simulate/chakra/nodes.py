"""The nodes of a Chakra trace (https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto): a stream of
messages, first metadata and then the nodes, which may be compressed by gzip. Of a node this knows what simulators use.
"""

from __future__ import annotations

import dataclasses
import enum
import gzip
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jaxring._protobuf import Message

# What is written says this version of the schema.
VERSION = "1.0.2-chakra.0.0.4"
_GZIP = b"\x1f\x8b"


class NodeType(enum.IntEnum):
    """What a node is."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


# CollectiveCommType of the schema, by our names; ours have no barrier.
COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}

# Fields of GlobalMetadata, Node, IOInfo and AttributeProto.
_VERSION = 1
_ID, _NAME, _TYPE, _DATA_DEPS, _DURATION, _INPUTS, _ATTR = 1, 2, 3, 5, 7, 8, 10
_VALUES = 1
_ATTR_NAME, _INT32, _INT64, _BOOL, _STRING = 1, 7, 9, 27, 29
_PLAIN = (_INT32, _INT64, 11, 13, _BOOL)  # int32, int64, uint32, uint64, bool
_ZIGZAG = (15, 17)  # sint32, sint64
_FIXED = (19, 21, 23, 25)  # fixed32, fixed64, sfixed32, sfixed64


@dataclasses.dataclass(frozen=True)
class Node:
    """``deps``: the ids of nodes whose data it needs. ``us``: its duration in whole us. ``attributes``: its integers,
    booleans and texts by name. ``inputs``: a text with the values of its inputs."""

    id: int
    name: str
    type: NodeType
    deps: tuple[int, ...] = ()
    us: int = 0
    attributes: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    inputs: str = ""


def read(data: bytes) -> list[Node]:
    """The nodes of a trace, in the order of the file. Raises ValueError with the byte at which it is broken."""
    from jaxring._protobuf import undelimited  # it loads the native module, which the command needs for traces alone

    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"its compression is broken: {error}") from None
    nodes: list[Node] = []
    known: set[int] = set()
    for position, (offset, message) in enumerate(undelimited(data)):
        if position == 0:
            continue  # the metadata: nothing in it decides about time
        try:
            node = _node(message)
        except (IndexError, ValueError) as error:
            raise ValueError(f"byte {offset}: this is no node of a Chakra trace: {error}") from None
        if node.id in known:
            raise ValueError(f"byte {offset}: a second node has the id {node.id}")
        known.add(node.id)
        nodes.append(node)
    if not nodes:
        raise ValueError("it holds no node of a Chakra trace")
    for node in nodes:
        for other in node.deps:
            if other not in known:
                raise ValueError(f"node {node.id} ({node.name}) needs node {other}, which is not there")
    return nodes


def _node(message: Message) -> Node:
    attributes: dict[str, int | str] = {}
    for attribute in message.messages(_ATTR):
        value = _value(attribute)
        if value is not None:
            attributes[attribute.text(_ATTR_NAME)] = value
    us = message.number(_DURATION)
    if us < 0:
        raise ValueError("its duration has more than 63 bits")
    return Node(
        message.number(_ID),
        message.text(_NAME),
        NodeType(message.number(_TYPE)),
        tuple(message.numbers(_DATA_DEPS)),
        us,
        attributes,
        message.message(_INPUTS).text(_VALUES),
    )


def _value(attribute: Message) -> int | str | None:
    """None for lists, numbers with fractions and bytes."""
    for field, _, value in attribute.fields:
        if field == _STRING and isinstance(value, bytes):
            return value.decode(errors="replace")
        if field in _PLAIN and isinstance(value, int):
            return value - (1 << 64) if value >> 63 else value
        if field in _ZIGZAG and isinstance(value, int):
            return (value >> 1) ^ -(value & 1)
        if field in _FIXED and isinstance(value, bytes):
            return int.from_bytes(value, "little", signed=field in _FIXED[2:])
    return None


def write(nodes: Iterable[Node]) -> bytes:
    """A trace of these nodes. Integers become int64, but ranks and tags int32, as the schema's own tools have them."""
    from jaxring._protobuf import Message, delimited, packed

    messages = [Message.of((_VERSION, VERSION))]
    for node in nodes:
        message = Message.of((_ID, node.id), (_NAME, node.name), (_TYPE, int(node.type)))
        if node.deps:
            message.add(_DATA_DEPS, packed(node.deps))
        if node.us:
            message.add(_DURATION, node.us)
        if node.inputs:
            message.add(_INPUTS, Message.of((_VALUES, node.inputs)))
        for name, value in node.attributes.items():
            message.add(_ATTR, Message.of((_ATTR_NAME, name), (_field(name, value), value)))
        messages.append(message)
    return delimited(messages)


def _field(name: str, value: int | str) -> int:
    if isinstance(value, str):
        return _STRING
    if isinstance(value, bool):
        return _BOOL
    return _INT32 if name in ("comm_src", "comm_dst", "comm_tag") else _INT64
