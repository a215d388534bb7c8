"""Arrays and tuples of them as ShapeProtos describe them."""

from __future__ import annotations

import functools
from typing import NamedTuple

from jaxring._protobuf import Message, packed

# xla.PrimitiveType
_DTYPES = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    15: "complex64",
    16: "bfloat16",
    18: "complex128",
    19: "float8_e5m2",
    20: "float8_e4m3fn",
    21: "int4",
    22: "uint4",
    23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
    26: "int2",
    27: "uint2",
    28: "float8_e4m3",
    29: "float8_e3m4",
    32: "float4_e2m1fn",
    33: "float8_e8m0fnu",
}
_NUMBERS = {name: number for number, name in _DTYPES.items()}
_TUPLE = 13
# The types in which XLA:CPU computes with a narrow type instead; they hold all of its values.
WIDER = {
    "bfloat16": ("float32",),
    "float8_e4m3fn": ("float16", "float32"),
    "float8_e5m2": ("float16", "float32"),
}
# A ShapeProto's field for such a narrow type, as it is serialized.
NARROW = [bytes(Message.of((2, _NUMBERS[dtype]))) for dtype in WIDER]


class Shape(NamedTuple):
    """An array in memory. ``order`` has the dimensions from the outermost to the innermost."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def parse(cls, data: bytes) -> Shape:
        """From a ShapeProto of an array."""
        message = Message(data)
        dims = tuple(message.numbers(3))
        inner = message.message(5).numbers(1)
        number = message.number(2)
        order = tuple(inner[::-1]) if len(inner) == len(dims) else tuple(range(len(dims)))
        return cls(_DTYPES.get(number, f"of XLA's type {number}"), dims, order)

    def serialized(self) -> bytes:
        """As a ShapeProto."""
        layout = Message.of((1, packed(self.order[::-1])))
        static = packed([0] * len(self.dims))
        return bytes(Message.of((2, _NUMBERS[self.dtype]), (3, packed(self.dims)), (5, layout), (6, static)))

    def split(self, dimension: int, parts: int) -> Shape:
        """One of so many equal parts along a dimension."""
        dims = tuple(n // parts if i == dimension else n for i, n in enumerate(self.dims))
        return self._replace(dims=dims)

    def row_major(self) -> Shape:
        """The same array, its last dimension innermost."""
        return self._replace(order=tuple(range(len(self.dims))))

    def in_whole_blocks(self, dimension: int) -> bool:
        """Whether parts along a dimension are contiguous: all dimensions outside of it are of size 1."""
        return all(self.dims[outer] == 1 for outer in self.order[: self.order.index(dimension)])

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@functools.lru_cache(maxsize=1024)
def shapes(data: bytes) -> tuple[Shape, ...]:
    """The arrays of a ShapeProto: itself, or those of a tuple."""
    message = Message(data)
    if message.number(2) != _TUPLE:
        return (Shape.parse(data),)
    return tuple(Shape.parse(each) for each in message.all(4))


def of_dtype(data: bytes, *dtypes: str | None) -> bytes:
    """The ShapeProto of the same array, or arrays, of other types, whose elements are whole bytes; None: of its own."""
    message = Message(data)
    if message.number(2) == _TUPLE:
        rest = [field for field in message.fields if field[0] != 4]
        parts = [of_dtype(part, dtype) for part, dtype in zip(message.all(4), dtypes, strict=True)]
        message.fields = [*rest, *((4, 2, part) for part in parts)]
    elif dtypes[0] is not None:
        message.put(2, _NUMBERS[dtypes[0]])
    return bytes(message)


def row_major(data: bytes) -> bytes:
    """A ShapeProto with all arrays in row-major order. Tuples in tuples, and what is no array, stay as they are."""
    message = Message(data)
    if message.number(2) == _TUPLE:
        return bytes(Message.of((2, _TUPLE), *((4, row_major(part)) for part in message.all(4))))
    shape = Shape.parse(data)
    return shape.row_major().serialized() if shape.dtype in _NUMBERS and shape != shape.row_major() else data


@functools.lru_cache(maxsize=1024)
def is_tuple(data: bytes) -> bool:
    """Whether a ShapeProto is that of a tuple."""
    return Message(data).number(2) == _TUPLE
