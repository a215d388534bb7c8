"""Whether a call may write its result over its operand.

XLA inserts no more copies after the transformation, and makes one buffer of operand and result where they are aliased.
That is right where nothing else can come to share this buffer: the operand is computed for this call alone, and the
result is consumed by computations. A result that goes out of a loop's body, or of a program that aliases results with
parameters, shares its buffer with what comes in, which may be read until the result is there, but not until the operand
is. An update in place hands a buffer on in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module

# What makes a new value in memory of its own; fusions where nothing in them updates in place.
_MAKES = frozenset({"fusion", "dot", "reduce", "copy", "convolution", "concatenate"})
# What hands a buffer on instead of computing something from it.
_PASSES = frozenset(
    {
        *("tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "custom-call", "async-start"),
        *(
            "dynamic-update-slice",
            "scatter",
            "ragged-all-to-all",
            "set-dimension-size",
            "copy-start",
            "optimization-barrier",
            "opt-barrier",
            "add-dependency",
        ),
    }
)
# What comes from elsewhere, or from what has other results.
_GIVEN = frozenset({"parameter", "constant", "get-tuple-element"})
_IN_PLACE = (b"dynamic-update-slice", b"scatter")


class Uses:
    """Who uses the values of a computation."""

    def __init__(self, module: Module, computation: Computation) -> None:
        self._module = module
        self._root = computation.root_id
        self._by_id, self._users = computation.by_id, computation.users
        self._taken: dict[int, dict[int, list[int]] | None] = {}

    def may_alias(self, call: Instruction, operand: int) -> bool:
        """Whether the result of an all-reduce, one of its results where it has several, may lie in an operand."""
        made = self._by_id[operand]
        if made.opcode not in _MAKES or operand == self._root or len(self._users[operand]) != 1:
            return False
        if not self._computes(made) or call.operands.count(operand) != 1:
            return False
        results = [call.id]
        if len(call.operands) > 1:
            taken = self._results(call)
            if taken is None:
                return False
            results = taken.get(call.operands.index(operand), [])
        return all(self._is_consumed(result) for result in results)

    def _results(self, call: Instruction) -> dict[int, list[int]] | None:
        """What takes each of a call's results; None where they are not taken one by one."""
        # Each of hundreds of operands asks for it.
        if call.id not in self._taken:
            users = self._users.get(call.id, [])
            found: dict[int, list[int]] | None = None
            if call.id != self._root and all(user.opcode == "get-tuple-element" for user in users):
                found = {}
                for user in users:
                    found.setdefault(user.message.number(13), []).append(user.id)
            self._taken[call.id] = found
        return self._taken[call.id]

    def alone(self, call: Instruction, operand: int) -> bool:
        """Whether an operand is computed for this call alone."""
        made = self._by_id[operand]
        return made.opcode not in _GIVEN and operand != self._root and self._users[operand] == [call]

    def _is_consumed(self, value: int) -> bool:
        """Whether a value is used by computations only."""
        users = self._users.get(value, [])
        return value != self._root and all(user.opcode not in _PASSES and self._computes(user) for user in users)

    def _computes(self, instruction: Instruction) -> bool:
        """Whether an instruction leaves the memory of its operands as it is."""
        if instruction.opcode != "fusion":
            return True
        inside = [self._module.by_id[called].data for called in instruction.called]
        return not any(opcode in data for data in inside for opcode in _IN_PLACE)
