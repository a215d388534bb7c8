"""The messages of Chakra's schema (et_def.proto of 1.0.2-chakra.0.0.4) for protobuf's own library: those fields that
simulators use."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "ChakraProtoMsg"
_FIELDS = {
    "AttributeProto": {
        "name": (1, "STRING"), "int32_val": (7, "INT32"), "int64_val": (9, "INT64"), "uint64_val": (13, "UINT64"),
        "sint64_val": (17, "SINT64"), "fixed64_val": (21, "FIXED64"), "sfixed32_val": (23, "SFIXED32"),
        "bool_val": (27, "BOOL"), "string_val": (29, "STRING"),
    },
    "GlobalMetadata": {"version": (1, "STRING")},
    "IOInfo": {"values": (1, "STRING"), "shapes": (2, "STRING"), "types": (3, "STRING")},
    "Node": {
        "id": (1, "UINT64"), "name": (2, "STRING"), "type": (3, "INT32"), "ctrl_deps": (4, "*UINT64"),
        "data_deps": (5, "*UINT64"), "start_time_micros": (6, "UINT64"), "duration_micros": (7, "UINT64"),
        "inputs": (8, "IOInfo"), "outputs": (9, "IOInfo"), "attr": (10, "*AttributeProto"),
    },
}  # fmt: skip


def _messages() -> dict[str, type]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number)
            if field.endswith("_val"):
                added.oneof_index = 0
            added.label = added.LABEL_REPEATED if kind.startswith("*") else added.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in _FIELDS:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(added, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


MESSAGES = _messages()
Attribute, Metadata, Node = MESSAGES["AttributeProto"], MESSAGES["GlobalMetadata"], MESSAGES["Node"]


def decode(data: bytes) -> list:
    """The nodes of a trace."""
    messages = []
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        messages.append((Node if messages else Metadata).FromString(data[at : at + size]))
        at += size
    assert messages[0].version
    return messages[1:]


def encode(nodes: list) -> bytes:
    """A trace of these nodes."""
    data = bytearray()
    for message in (Metadata(version="0.0.4"), *nodes):
        body = message.SerializeToString()
        size = len(body)
        while size > 127:
            data.append(size & 127 | 128)
            size >>= 7
        data.append(size)
        data += body
    return bytes(data)


def attributes(node) -> dict:
    """The attributes of a node by name."""
    return {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}
