"""A computation that is being rewritten: where new instructions get their ids, and the partition's number from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.aliasing import Uses
from jaxring.dropin.whole_program.hlo import Instruction
from jaxring.dropin.whole_program.shapes import row_major
from jaxring.dropin.whole_program.unserved import UnservedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.dropin.whole_program.hlo import Computation, Module

_U32, _LOCAL = 8, (1 << 32) - 1
_SCALAR_U32 = bytes(Message.of((2, _U32), (5, b"")))


class Body:
    """The new instructions of a computation, in order."""

    def __init__(self, module: Module, computation: Computation) -> None:
        self.module, self.computation = module, computation
        self.instructions: list[Instruction] = []
        self._made: dict[int, Instruction] = {}
        ids = [each.id for each in computation.instructions]
        self._high, self._last = ids[0] & ~_LOCAL, max(n & _LOCAL for n in ids)
        if any(n & ~_LOCAL != self._high for n in ids):
            raise ValueError("the ids of a computation's instructions are not as XLA makes them")
        self._partition: int | None = None
        self._uses: Uses | None = None
        self._following: dict[int, Instruction] = {}

    def keep(self, instruction: Instruction) -> None:
        """Takes an instruction as it is."""
        self.instructions.append(instruction)
        self._made[instruction.id] = instruction
        if instruction.id in self._following:
            self.keep(self._following.pop(instruction.id))

    def made(self, identifier: int) -> Instruction:
        """An instruction that stands before."""
        return self._made[identifier]

    def shape(self, identifier: int) -> bytes:
        """Its ShapeProto; in row-major order where XLA has yet to lay it out."""
        return self._laid_out(self._made[identifier].shape)

    def shape_of(self, instruction: Instruction) -> bytes:
        """The ShapeProto of an instruction that is replaced, in the same sense."""
        return self._laid_out(instruction.shape)

    def make(
        self,
        opcode: str,
        shape: bytes,
        operands: list[int],
        *fields: tuple[int, int | bytes | str | Message],
        name: str = "",
    ) -> int:
        """Appends a new instruction with these fields besides, and returns its id."""
        identifier, name = self._new(name or "jaxring_" + opcode.replace("-", "_"))
        self._append(name, opcode, shape, operands, identifier, fields)
        return identifier

    def widen_after(self, instruction: Instruction, shape: bytes) -> None:
        """Has an instruction that is kept or replaced later followed by a conversion, which its users get instead."""
        wide = instruction.id
        identifier, name = self._new("jaxring_convert")
        instruction.change(instruction.opcode, identifier)
        fields = ((1, name), (2, "convert"), (3, shape), (35, wide), (36, packed([identifier])))
        self._following[identifier] = Instruction(Message.of(*fields))

    def replace(
        self,
        instruction: Instruction,
        opcode: str,
        operands: list[int],
        *fields: tuple[int, int | bytes | str | Message],
        name: str = "",
        like: Instruction | None = None,
    ) -> None:
        """Appends an instruction that takes the place of another one, and its id, result and place in the program.

        ``like``: the one whose place in the source it has.
        """
        name = f"{name}.{instruction.name}" if name else instruction.name
        kept = (like or instruction).message.select(_KEPT)
        self._append(name, opcode, self.shape_of(instruction), operands, instruction.id, fields, kept)

    def partition_id(self) -> int:
        """The id of the instruction by which each rank knows who it is."""
        if self._partition is None:
            self._partition = self.make("partition-id", _SCALAR_U32, [])
        return self._partition

    @property
    def uses(self) -> Uses:
        """Who uses what in the computation as it was."""
        if self._uses is None:
            self._uses = Uses(self.module, self.computation)
        return self._uses

    def finish(self) -> bytes:
        """The computation's new text."""
        return self.computation.replaced(self.instructions)

    def reduction(self, instruction: Instruction) -> str:
        """The operation of a reduction by its opcode. Raises UnservedError where it is more than one operation."""
        opcode, operands = self.module.reduction(instruction.called[0])
        if operands != 2:
            raise UnservedError("its reduction is not a single operation")
        return opcode

    def _new(self, name: str) -> tuple[int, str]:
        self._last += 1
        identifier = self._high | self._last
        return identifier, f"{name}.{identifier >> 32}.{self._last}"

    def _laid_out(self, shape: bytes) -> bytes:
        return row_major(shape) if self.module.on_gpus else shape

    def _append(
        self,
        name: str,
        opcode: str,
        shape: bytes,
        operands: list[int],
        identifier: int,
        fields: tuple[tuple[int, int | bytes | str | Message], ...],
        kept: Sequence[tuple[int, int | bytes]] = (),
    ) -> None:
        used = [(36, packed(operands))] if operands else []
        message = Message.of((1, name), (2, opcode), (3, shape), *fields, (35, identifier), *used, *kept)
        self.keep(Instruction(message))


# Metadata, control predecessors, sharding and frontend attributes.
_KEPT = (7, 37, 40, 68)
