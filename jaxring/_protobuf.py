"""The wire format of protocol buffers, as far as reading, writing and editing messages needs it.

XLA hands its modules over as serialized ``HloModuleProto``s, and Chakra's traces are messages, too. JAX does not depend
on Python's protobuf package, whose messages would need the schemas besides, of every version. Editing needs less: a
message is the list of its fields, in order, and those that nothing here knows stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK64 = (1 << 64) - 1

Value = int | bytes


class Message:
    """A message, parsed when something of it is asked for. What nobody changes is written as it was read."""

    __slots__ = ("_data", "_fields")

    def __init__(self, data: bytes = b"") -> None:
        self._data: bytes | None = data
        self._fields: list[tuple[int, int, Value]] | None = None

    def read(self) -> list[tuple[int, int, Value]]:
        """(number, wire type, value) of each field. Do not change it."""
        if self._fields is None:
            self._fields = _parse(self._data or b"")
        return self._fields

    @property
    def fields(self) -> list[tuple[int, int, Value]]:
        """The same; change it in place, or set it."""
        found = self.read()
        self._data = None
        return found

    @fields.setter
    def fields(self, fields: list[tuple[int, int, Value]]) -> None:
        self._data, self._fields = None, fields

    @classmethod
    def of(cls, *fields: tuple[int, Value | str | Message]) -> Message:
        """A message of these fields. A text becomes UTF-8."""
        made = cls()
        for number, value in fields:
            made.add(number, value)
        return made

    def add(self, number: int, value: Value | str | Message) -> None:
        """Appends a field."""
        if isinstance(value, int):
            self.fields.append((number, _VARINT, value & _MASK64))
        else:
            data = bytes(value) if isinstance(value, Message) else value.encode() if isinstance(value, str) else value
            self.fields.append((number, _BYTES, data))

    def put(self, number: int, value: Value | str | Message) -> None:
        """Sets a field that occurs once, in its place where it is there."""
        at = next((i for i, field in enumerate(self.fields) if field[0] == number), len(self.fields))
        self.add(number, value)
        self.fields[at : at + 1] = [self.fields.pop()]

    def has(self, number: int) -> bool:
        """Whether the field is there, be it empty."""
        return any(field[0] == number for field in self.read())

    def number(self, number: int, default: int = 0) -> int:
        """An integer field, taken as signed."""
        for found, wire, value in self.read():
            if found == number and wire == _VARINT:
                assert isinstance(value, int)
                return value - (1 << 64) if value >> 63 else value
        return default

    def data(self, number: int) -> bytes:
        """The first field of that number: a text or a message in its serialized form. Empty if there is none."""
        for found, _, value in self.read():
            if found == number and isinstance(value, bytes):
                return value
        return b""

    def all(self, number: int) -> Iterator[bytes]:
        """Every field of that number."""
        for found, _, value in self.read():
            if found == number and isinstance(value, bytes):
                yield value

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
        found: list[int] = []
        for field, wire, value in self.read():
            if field != number:
                continue
            if isinstance(value, int):
                found.append(value)
            elif wire == _BYTES:
                found += _unpacked(value)
        return [n - (1 << 64) if n >> 63 else n for n in found]

    def __bytes__(self) -> bytes:
        if self._data is not None:
            return self._data
        parts: list[bytes] = []
        for number, wire, value in self.read():
            parts.append(_encode(number << 3 | wire))
            if isinstance(value, int):
                parts.append(_encode(value))
                continue
            if wire == _BYTES:
                parts.append(_encode(len(value)))
            parts.append(value)
        return b"".join(parts)


def delimited(messages: Iterable[Message]) -> bytes:
    """Messages one after another, each behind its length, as streams of protocol buffers are kept."""
    parts: list[bytes] = []
    for message in messages:
        data = bytes(message)
        parts += (_encode(len(data)), data)
    return b"".join(parts)


def undelimited(data: bytes) -> Iterator[tuple[int, Message]]:
    """The messages of such a stream, and the offset at which each begins. Raises ValueError with the offset of one that
    the data do not hold whole."""
    at = 0
    while at < len(data):
        begin = at
        try:
            size, at = _varint(data, at)
            message = Message(data[at : at + size])
            message.read()
        except (IndexError, ValueError) as error:
            raise ValueError(f"byte {begin}: no message of protocol buffers begins here ({error})") from None
        if at + size > len(data):
            raise ValueError(f"byte {begin}: a message of {size} bytes begins here, and {len(data) - at} are left")
        at += size
        yield begin, message


def packed(numbers: Iterable[int]) -> bytes:
    """The value of a packed repeated integer field."""
    return b"".join(_encode(n & _MASK64) for n in numbers)


def _parse(data: bytes) -> list[tuple[int, int, Value]]:
    """Raises ValueError or IndexError for what is no message."""
    fields: list[tuple[int, int, Value]] = []
    at, end = 0, len(data)
    while at < end:
        # Most keys and lengths are of one byte, for which no function is called.
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, at - 1)
        wire = key & 7
        if wire == _VARINT:
            number, at = _varint(data, at)
            fields.append((key >> 3, wire, number))
            continue
        if wire == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        stop = at + size
        if stop > end:
            raise ValueError("a field reaches past the end of its message")
        fields.append((key >> 3, wire, data[at:stop]))
        at = stop
    return fields


def _unpacked(data: bytes) -> list[int]:
    found: list[int] = []
    number = shift = 0
    for byte in data:
        if byte > 127:
            number |= (byte & 127) << shift
            shift += 7
        else:
            found.append(number | byte << shift)
            number = shift = 0
    if shift:
        raise IndexError("the last number of a field has no end")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at that place, and the place after it."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while byte >= 128:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
    return number, at


_SHORT = [bytes((number,)) for number in range(128)]


def _encode(number: int) -> bytes:
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
