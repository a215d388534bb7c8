"""The wire format of protocol buffers, as far as reading, writing and editing messages needs it.

XLA hands its modules over as serialized ``HloModuleProto``s, and Chakra's traces are messages, too. JAX does not depend
on Python's protobuf package, whose messages would need the schemas besides, of every version. Editing needs less: a
message is the list of its fields, in order, and those that nothing here knows stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jaxring._native as _native

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Value = int | bytes


class Message:
    """A message in its serialized form, of which fields are read when they are asked for.

    What nobody changes stays as it was read. Reading raises IndexError or ValueError for what is no message.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    @property
    def fields(self) -> list[tuple[int, int, Value]]:
        """(number, wire type, value) of each field, in a new list. Set it to change the message."""
        return _native.protobuf_fields(self._data)

    @fields.setter
    def fields(self, fields: list[tuple[int, int, Value]]) -> None:
        self._data = _native.protobuf_message(fields)

    @classmethod
    def of(cls, *fields: tuple[int, Value | str | Message]) -> Message:
        """A message of these fields. A text becomes UTF-8."""
        return cls(_native.protobuf_of(fields))

    def add(self, number: int, value: Value | str | Message) -> None:
        """Appends a field."""
        self._data += _native.protobuf_of(((number, value),))

    def put(self, number: int, value: Value | str | Message) -> None:
        """Sets a field that occurs once, in its place where it is there."""
        self._data = _native.protobuf_put(self._data, number, value)

    def put_all(self, number: int, values: list[bytes]) -> None:
        """Sets every field of that number, where the first of them stands; at the end if there is none."""
        self._data = _native.protobuf_put_all(self._data, number, values)

    def select(self, numbers: Sequence[int]) -> list[tuple[int, Value]]:
        """(number, value) of the fields of these numbers, in the message's order."""
        return _native.protobuf_select(self._data, numbers)

    def rows(self, number: int, wanted: Sequence[int]) -> list[tuple[Any, ...]]:
        """For each message in a field of that number its bytes, and the first of each of its wanted fields or None."""
        return _native.protobuf_rows(self._data, number, wanted)

    def holding(self, path: Sequence[int], values: Sequence[bytes]) -> list[int]:
        """The positions among the fields path[0] of those that hold, where the path leads, one of the values."""
        return _native.protobuf_holding(self._data, path, values)

    def has(self, number: int) -> bool:
        """Whether the field is there, be it empty."""
        return bool(self.select((number,)))

    def number(self, number: int, default: int = 0) -> int:
        """An integer field, taken as signed."""
        return _native.protobuf_number(self._data, number, default)

    def data(self, number: int) -> bytes:
        """The first field of that number: a text or a message in its serialized form. Empty if there is none."""
        return _native.protobuf_data(self._data, number)

    def all(self, number: int) -> list[bytes]:
        """Every field of that number."""
        return _native.protobuf_all(self._data, number)

    def text(self, number: int) -> str:
        """A text field."""
        return self.data(number).decode(errors="replace")

    def message(self, number: int) -> Message:
        """A field that is a message; an empty one if there is none."""
        return Message(self.data(number))

    def messages(self, number: int) -> Iterator[Message]:
        """Every field of that number, as messages."""
        return map(Message, self.all(number))

    def numbers(self, number: int) -> list[int]:
        """A repeated integer field, packed or not, taken as signed."""
        return _native.protobuf_numbers(self._data, number)

    def __bytes__(self) -> bytes:
        return self._data


def delimited(messages: Iterable[Message]) -> bytes:
    """Messages one after another, each behind its length, as streams of protocol buffers are kept."""
    parts: list[bytes] = []
    for message in messages:
        data = bytes(message)
        parts += (packed([len(data)]), data)
    return b"".join(parts)


def undelimited(data: bytes) -> Iterator[tuple[int, Message]]:
    """The messages of such a stream, and the offset at which each begins. Raises ValueError with the offset of one that
    the data do not hold whole."""
    at = 0
    while at < len(data):
        begin = at
        try:
            size, at = _native.protobuf_varint(data, at)
            message = Message(data[at : at + size])
            message.select(())  # raises for what is no message
        except (IndexError, ValueError) as error:
            raise ValueError(f"byte {begin}: no message of protocol buffers begins here ({error})") from None
        if at + size > len(data):
            raise ValueError(f"byte {begin}: a message of {size} bytes begins here, and {len(data) - at} are left")
        at += size
        yield begin, message


def packed(numbers: Iterable[int]) -> bytes:
    """The value of a packed repeated integer field."""
    return _native.protobuf_packed(list(numbers))
