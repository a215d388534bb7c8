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
