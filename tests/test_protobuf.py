"""Messages in protobuf's wire format: what is read is what was written, and what is broken is told."""

from __future__ import annotations

import pytest

from jaxring._protobuf import Message, delimited, packed, undelimited


@pytest.mark.parametrize("numbers", [[], [0], [127, 128, 300], [2**31 - 1, 2**63 - 1], [-1, 5, -(2**63)]])
def test_packed_numbers(numbers):
    message = Message(bytes(Message.of((36, packed(numbers)))))
    assert message.numbers(36) == numbers


def test_numbers_by_themselves_and_packed():
    # Field 1 as 300, then as a packed field of 1 and 300: both forms of protobuf's encoding guide.
    message = Message(bytes([0x08, 0xAC, 0x02, 0x0A, 0x03, 0x01, 0xAC, 0x02]))
    assert message.numbers(1) == [300, 1, 300]


def test_a_packed_number_without_an_end():
    message = Message(bytes([0x0A, 0x02, 0x01, 0xAC]))
    with pytest.raises(IndexError):
        message.numbers(1)


def test_what_nobody_changes_is_written_as_it_was_read():
    # A number in more bytes than it needs, which a writer of its own would shorten.
    data = bytes([0x08, 0x81, 0x80, 0x00, 0x12, 0x02, 0x68, 0x69])
    message = Message(data)
    assert message.number(1) == 1
    assert message.text(2) == "hi"
    assert bytes(message) == data


def test_a_stream_of_messages():
    messages = [Message.of((1, 5)), Message(), Message.of((2, b"x" * 300))]
    data = delimited(messages)
    assert [(at, bytes(message)) for at, message in undelimited(data)] == [
        (0, bytes(messages[0])),
        (3, b""),
        (4, bytes(messages[2])),
    ]
    with pytest.raises(ValueError, match=r"byte 4: .* reaches past"):
        list(undelimited(data[:-1]))
    with pytest.raises(ValueError, match="byte 0: a message of 2 bytes begins here, and 0 are left"):
        list(undelimited(data[:1]))


def test_a_field_is_set_in_its_place():
    message = Message.of((1, 5), (2, "a"), (1, 6), (3, b"z"))
    message.put(1, -1)
    message.put(4, "new")
    assert message.select((1, 2, 3, 4)) == [(1, 2**64 - 1), (2, b"a"), (1, 6), (3, b"z"), (4, b"new")]
    assert message.number(1) == -1
    message.put_all(1, [b"x", b"y"])
    message.put_all(5, [b"end"])
    assert [(n, v) for n, _, v in message.fields] == [
        (1, b"x"),
        (1, b"y"),
        (2, b"a"),
        (3, b"z"),
        (4, b"new"),
        (5, b"end"),
    ]


def test_fields_of_each_kind_are_written_as_they_were_read():
    # A varint, 8 bytes, a text, 4 bytes.
    data = bytes([0x08, 0x2A, 0x11, *range(8), 0x1A, 0x02, 0x68, 0x69, 0x25, *range(4)])
    message = Message(data)
    assert message.fields == [(1, 0, 42), (2, 1, bytes(range(8))), (3, 2, b"hi"), (4, 5, bytes(range(4)))]
    message.fields = message.fields
    assert bytes(message) == data


def test_rows_of_messages():
    inner = [Message.of((2, "add"), (35, 7), (35, 8)), Message(), Message.of((35, 2**63))]
    message = Message.of((1, "name"), *((2, each) for each in inner), (2, 3))
    assert message.rows(2, (2, 35)) == [(bytes(inner[0]), b"add", 7), (b"", None, None), (bytes(inner[2]), None, 2**63)]


def test_the_messages_that_hold_a_value():
    def computation(*opcodes: str) -> Message:
        return Message.of((1, "all-reduce"), *((2, Message.of((1, "add"), (2, opcode))) for opcode in opcodes))

    module = Message.of(
        (3, computation("add", "all-reduce")),
        (4, "add"),
        (3, computation()),
        (3, computation("all-gather-start", "add")),
    )
    assert module.holding((3, 2, 2), [b"all-reduce", b"all-gather"]) == [0]
    assert module.holding((3, 2, 2), [b"add"]) == [0, 2]
    assert module.holding((3, 2, 2), []) == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x08", IndexError),
        (b"\x08" + b"\xff" * 10 + b"\x01", ValueError),
        (b"\x0a\x05hi", ValueError),
        (b"\x0a" + b"\xff" * 9 + b"\x01", ValueError),
        (b"\x09\x00", ValueError),
        (b"\x0b", ValueError),
    ],
)
def test_what_is_no_message_is_refused_whatever_is_asked_for(data, error):
    message = Message(b"\x10\x01" + data)
    asked = [
        lambda: message.fields,
        lambda: message.number(2),
        lambda: message.data(2),
        lambda: message.all(2),
        lambda: message.numbers(2),
        lambda: message.select((2,)),
        lambda: message.rows(2, (1,)),
        lambda: message.put(2, 1),
        lambda: message.put_all(2, []),
    ]
    for ask in asked:
        with pytest.raises(error):
            ask()


def test_a_field_with_other_parts_is_refused():
    for field in ((), (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"a field is \(number, value\)"):
            Message.of(field)  # type: ignore[arg-type]
    message = Message.of((1, 5))
    for parts in ((), (1, 0), (1, 0, 5, 5)):
        with pytest.raises(ValueError, match=r"a field is \(number, wire type, value\)"):
            message.fields = [parts]  # type: ignore[list-item]
    assert message.fields == [(1, 0, 5)]


def test_what_is_no_value_of_a_field_is_refused():
    with pytest.raises(AttributeError):
        Message.of((1, 1.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [(1, 0, b"x"), (1, 2, 5), (1, 1, b"abc"), (1, 5, b"12345678"), (1, 3, b"")])
def test_a_value_that_its_wire_type_cannot_have_is_refused(field):
    message = Message()
    with pytest.raises(ValueError, match=f"field 1 of wire type {field[1]}"):
        message.fields = [field]


def test_fields_of_fixed_size_are_written_as_they_were_read():
    message, fields = Message(), [(3, 1, b"12345678"), (4, 5, b"abcd"), (5, 0, 300), (6, 2, b"text")]
    message.fields = fields
    assert message.fields == fields
