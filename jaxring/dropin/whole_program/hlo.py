"""A typed view of a serialized HLO module: what the rewriting of collectives reads of it."""

from __future__ import annotations

import functools

from jaxring._protobuf import Message
from jaxring.dropin.whole_program.shapes import NARROW
from jaxring.dropin.whole_program.source_places import Places

_LOCAL = (1 << 32) - 1


class Instruction:
    """One instruction; ``message`` is its HloInstructionProto.

    Do not change opcode and id there but by `change`, nor operands at all.
    """

    __slots__ = ("_operands", "id", "message", "opcode")

    def __init__(self, message: Message) -> None:
        self.message = message
        # Read here, because every instruction is asked for them, and often.
        self.opcode, self.id = message.text(2), message.number(35)
        self._operands: list[int] | None = None

    @classmethod
    def all(cls, computation: Message) -> list[Instruction]:
        """Those of an HloComputationProto."""
        found = []
        for data, opcode, identifier in computation.rows(2, (2, 35)):
            made = cls.__new__(cls)
            made.message, made.opcode, made.id = Message(data), (opcode or b"").decode(), identifier or 0
            made._operands = None
            found.append(made)
        return found

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
        # Kept, because a combined collective with its hundreds of operands is asked for them once for each.
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
    """One computation; ``message`` is its HloComputationProto, ``written`` what is in the changed module."""

    def __init__(self, data: bytes, identifier: int) -> None:
        self.data, self.message, self.written, self.id = data, Message(data), data, identifier

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """In the module's order, in which operands come before their users."""
        return Instruction.all(self.message)

    @property
    def root_id(self) -> int:
        return self.message.number(6)

    def root(self) -> Instruction:
        """What the computation returns."""
        wanted = self.root_id
        if "instructions" in self.__dict__:
            return next(each for each in self.instructions if each.id == wanted)
        # Nothing else of a reduction is read, and the root stands last.
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
        """The users of each value that has any; one that uses it twice stands there twice."""
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
        made = Message(bytes(self.message))
        made.put_all(2, [bytes(each.message) for each in instructions])
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
        self._changed: dict[int, Computation] = {}
        self._reductions: dict[int, tuple[str, int]] = {}
        assignment = self.message.message(15)
        self.replicas, self.partitions = assignment.number(1, 1), assignment.number(2, 1)
        # Device ids by partition. A number 0 is left out in the format.
        self.devices = tuple((each.numbers(1) or [0])[0] for each in assignment.messages(3))

    @functools.cached_property
    def computations(self) -> list[Computation]:
        return [Computation(data, identifier or 0) for data, identifier in self.message.rows(3, (5,))]

    @functools.cached_property
    def by_id(self) -> dict[int, Computation]:
        return {each.id: each for each in self.computations}

    @functools.cached_property
    def converts(self) -> bool:
        """Whether XLA may have widened the type of a collective, which it does on CPUs.

        It is false only where no computation converts from or to a narrow type, whose number stands in a shape there.
        """
        if self.on_gpus:
            return False
        data = (self.computations[i].data for i in self.message.holding((3, 2, 2), [b"convert"]))
        return any(narrow in each for each in data for narrow in NARROW)

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
        self._changed[computation.id] = computation

    def written(self) -> bytes:
        """The module with what the computations' ``written`` says, and with what `change` was told of."""
        for computation in self._changed.values():
            computation.written = computation.replaced(computation.instructions)
        made = Message(bytes(self.message))
        made.put_all(3, [each.written for each in self.computations])
        return bytes(made)

    @functools.cached_property
    def places(self) -> Places:
        """Where its instructions stand in the user's program."""
        return Places(self.message.message(17))
