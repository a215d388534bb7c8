"""A typed view of a serialized HLO module: what the rewriting of collectives reads of it."""

from __future__ import annotations

import functools
from typing import NamedTuple

from jaxring.dropin.whole_program.places import Places
from jaxring.dropin.whole_program.wire import Message, packed

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
_TUPLE, _LOCAL = 13, (1 << 32) - 1


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
        rest = [field for field in message.read() if field[0] != 4]
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


def is_tuple(data: bytes) -> bool:
    """Whether a ShapeProto is that of a tuple."""
    return Message(data).number(2) == _TUPLE


class Instruction:
    """One instruction; ``message`` is its HloInstructionProto.

    Do not change opcode and id there but by `change`, nor operands at all.
    """

    __slots__ = ("_operands", "id", "message", "opcode")

    def __init__(self, message: Message) -> None:
        self.message = message
        # Of every instruction they are asked for, and often.
        self.opcode, self.id = "", 0
        self._operands: list[int] | None = None
        for number, _, value in message.read():
            if number == 2 and isinstance(value, bytes):
                self.opcode = value.decode()
            elif number == 35 and isinstance(value, int):
                self.id = value

    def change(self, opcode: str, identifier: int) -> None:
        """Changes its opcode and id."""
        self.message.put(2, opcode)
        self.message.put(35, identifier)
        self.opcode, self.id = opcode, identifier

    @property
    def name(self) -> str:
        return self.message.text(1)

    @property
    def shape(self) -> bytes:
        return self.message.data(3)

    @property
    def metadata(self) -> Message:
        return self.message.message(7)

    @property
    def dimensions(self) -> list[int]:
        return self.message.numbers(14)

    @property
    def channel(self) -> int:
        return self.message.number(26)

    @property
    def operands(self) -> list[int]:
        """The ids of its operands. Do not change the list."""
        # Of a combined collective with its hundreds of operands they are asked for once for each.
        if self._operands is None:
            self._operands = self.message.numbers(36)
        return self._operands

    @property
    def called(self) -> list[int]:
        return self.message.numbers(38)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Sources and targets of a collective-permute."""
        return tuple((pair.number(1), pair.number(2)) for pair in self.message.messages(52))

    @property
    def uses_global_ids(self) -> bool:
        return bool(self.message.number(71))


class Computation:
    """One computation; ``message`` is its HloComputationProto."""

    def __init__(self, data: bytes) -> None:
        self.data, self.message = data, Message(data)
        self.id = self.message.number(5)

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """In the module's order, in which operands come before their users."""
        return [Instruction(message) for message in self.message.messages(2)]

    @property
    def root_id(self) -> int:
        return self.message.number(6)

    def root(self) -> Instruction:
        """What the computation returns."""
        wanted = self.root_id
        if "instructions" in self.__dict__:
            return next(each for each in self.instructions if each.id == wanted)
        # Of a reduction nothing else is read, and the root stands last.
        every = reversed(list(self.message.messages(2)))
        return Instruction(next(each for each in every if each.number(35) == wanted))

    def parameter(self, index: int) -> Instruction:
        """Its parameter of that number."""
        return next(p for p in self.instructions if p.opcode == "parameter" and p.message.number(9) == index)

    @functools.cached_property
    def by_id(self) -> dict[int, Instruction]:
        return {each.id: each for each in self.instructions}

    @functools.cached_property
    def users(self) -> dict[int, list[Instruction]]:
        """Of each value that has any; one that uses it twice stands there twice."""
        found: dict[int, list[Instruction]] = {}
        for each in self.instructions:
            for operand in each.operands:
                found.setdefault(operand, []).append(each)
        return found

    def take(self, instructions: list[Instruction]) -> None:
        """Has these instructions from now on."""
        self.instructions = instructions
        for name in ("by_id", "users"):
            self.__dict__.pop(name, None)

    def new_id(self) -> int:
        """For one more instruction."""
        ids = [each.id for each in self.instructions]
        return ids[0] & ~_LOCAL | max(n & _LOCAL for n in ids) + 1

    def replaced(self, instructions: list[Instruction]) -> bytes:
        """The computation with other instructions."""
        fields = self.message.read()
        made = Message()
        made.fields = [f for f in fields if f[0] < 2]
        for each in instructions:
            made.add(2, each.message)
        made.fields += [f for f in fields if f[0] > 2]
        return bytes(made)


class Module:
    """A partitioned module; ``message`` is its HloModuleProto.

    ``on_gpus``: it is compiled for GPUs, for which XLA lays arrays out, inserts copies and fuses only afterwards.
    """

    def __init__(self, data: bytes, on_gpus: bool = False) -> None:
        self.on_gpus = on_gpus
        # The metadata of what a collective with several operands was made of, by its id.
        self.joined: dict[int, list[Message]] = {}
        self.message = Message(data)
        self.name = self.message.text(1)
        # Whether XLA may have widened the type of a collective, which it does on CPUs.
        self.converts = not on_gpus and b"convert" in data
        self._changed: set[int] = set()
        self._reductions: dict[int, tuple[str, int]] = {}
        assignment = self.message.message(15)
        self.replicas, self.partitions = assignment.number(1, 1), assignment.number(2, 1)
        # Device ids by partition. A number 0 is left out in the format.
        self.devices = tuple((each.numbers(1) or [0])[0] for each in assignment.messages(3))

    @functools.cached_property
    def computations(self) -> list[tuple[int, Computation]]:
        """With the index of each among the message's fields."""
        fields = enumerate(self.message.read())
        return [(i, Computation(value)) for i, (number, _, value) in fields if number == 3 and isinstance(value, bytes)]

    @functools.cached_property
    def by_id(self) -> dict[int, Computation]:
        return {each.id: each for _, each in self.computations}

    @property
    def donates(self) -> bool:
        """Whether a parameter's memory may become a result's."""
        return self.message.message(8).has(1) or self.message.message(18).has(1)

    def reduction(self, identifier: int) -> tuple[str, int]:
        """The opcode of what the computation of a reduction returns, and the number of its operands."""
        # Each collective has a computation of its own, which is asked for several times.
        if identifier not in self._reductions:
            root = self.by_id[identifier].root()
            self._reductions[identifier] = root.opcode, len(root.operands)
        return self._reductions[identifier]

    def change(self, computation: Computation) -> None:
        """Takes note that instructions of a computation have been changed, added or removed."""
        for name in ("by_id", "users"):
            computation.__dict__.pop(name, None)
        self._changed.add(computation.id)

    def write_changed(self) -> None:
        """Writes what `change` was told of to the message."""
        for index, computation in self.computations:
            if computation.id in self._changed:
                self.message.fields[index] = (3, 2, computation.replaced(computation.instructions))

    @functools.cached_property
    def places(self) -> Places:
        """Where its instructions stand in the user's program."""
        return Places(self.message.message(17))
