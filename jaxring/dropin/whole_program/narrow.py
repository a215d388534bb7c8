"""Collectives of narrow floats, which XLA:CPU has widened: bfloat16 to float32, an 8-bit float to float16.

XLA converts the operands before such a collective and its results after, so the data would travel at twice its size.
Where the values are narrow numbers in a wide type the collective is done in the narrow type again. That changes no bit
of what only moves, nor of min and max; of other reductions every user of the result has to round it, which the engine
then does: it adds up in float32 and rounds once, as in a call of the user's.

Which fusions there are depends on the processor, and processes must come to the same decision. So it is taken on the
graph without fusions: values are followed into fusions and out of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.hlo import Instruction
from jaxring.dropin.whole_program.shapes import WIDER, is_tuple, of_dtype, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.dropin.whole_program.body import Body
    from jaxring.dropin.whole_program.hlo import Computation, Module

# The result has values of the operand's, or of all operands'.
_MOVES = frozenset({"copy", "transpose", "bitcast", "reshape", "slice", "reverse", "broadcast", "concatenate"})
_MOVES_FIRST = frozenset({"dynamic-slice"})
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
# Name, shape, metadata, id, operands.
_KEPT_OF_CONVERT = (1, 3, 7, 35, 36)
_FOLDS = frozenset({"sum", "prod"})


class _Scope(NamedTuple):
    """A computation, and the fusion that it is, with the scope in which that stands."""

    computation: Computation
    fusion: Instruction | None = None
    outer: _Scope | None = None


def narrow_dtypes(body: Body, instruction: Instruction, op: str | None) -> list[str | None]:
    """For each operand and its result the type in which they should be, None for the one that they have."""
    module = body.module
    results = _results(body, instruction) if module.converts else None
    if results is None:
        return [None] * len(instruction.operands)
    scope = _Scope(body.computation)

    def narrow(operand: int, values: list[int]) -> str | None:
        found = _origin(module, scope, operand)
        if op in _FOLDS or (op is not None and found is None):
            rounded = {each for value in values for each in _rounded(module, scope, value)}
            # The least and the greatest may be rounded before or after. What is added only if the program does so.
            if len(rounded) != 1 or (op in _FOLDS and found not in rounded and not _promoted(module, instruction)):
                return None
            (found,) = rounded
        return found if found and shapes(body.shape(operand))[0].dtype in WIDER.get(found, ()) else None

    return [narrow(*each) for each in zip(instruction.operands, results, strict=True)]


def narrow_operands(body: Body, instruction: Instruction, dtypes: list[str | None]) -> list[int]:
    """The operands in these types."""
    return [
        operand if dtype is None else _narrow_operand(body, instruction, operand, dtype)
        for operand, dtype in zip(instruction.operands, dtypes, strict=True)
    ]


def _narrow_operand(body: Body, instruction: Instruction, operand: int, dtype: str) -> int:
    made = body.computation.by_id[operand]
    before = _converted(body.module, made)
    if before is not None and shapes(body.shape(before))[0].dtype == dtype:
        return before
    only_for_it = operand != body.computation.root_id and body.computation.users[operand] == [instruction]
    if only_for_it and _editable(body.module, made):
        _round_root(body, made, dtype)
        return operand
    return body.make("convert", of_dtype(body.shape(operand), dtype), [operand])


def narrow_results(body: Body, instruction: Instruction, dtypes: list[str | None]) -> set[int]:
    """Gives the collective, which is replaced next, results in these types; users get them in the type that they had.

    Returns the numbers of the results that are handed on as they are, because their one user only converted them.
    """
    handed_on = set()
    several = is_tuple(instruction.shape)
    values = body.computation.users.get(instruction.id, []) if several else [instruction]
    uses_of = {value.id: body.computation.users.get(value.id, []) for value in values}
    if several:
        instruction.message.put(3, of_dtype(instruction.shape, *dtypes))
    for value in values:
        index = value.message.number(13) if several else 0
        dtype, wide, uses = dtypes[index], value.shape, uses_of[value.id]
        if dtype is None:
            continue
        value.message.put(3, of_dtype(wide, dtype))
        root = value.id == body.computation.root_id
        if not root and len(uses) == 1 and _is_convert_to(body.module, uses[0], dtype):
            handed_on.add(index)
            uses[0].message = Message.of(*uses[0].message.select(_KEPT_OF_CONVERT))
            uses[0].change("bitcast", uses[0].id)
        elif not root and all(_editable(body.module, user) for user in uses):
            for user in uses:
                for number, operand in enumerate(user.operands):
                    if operand == value.id:
                        _widen_parameter(body.module, user, number, dtype)
        else:
            body.widen_after(value, wide)
    return handed_on


def _results(body: Body, instruction: Instruction) -> list[list[int]] | None:
    """The values that are each of the results; None where they are not taken one by one."""
    if not is_tuple(instruction.shape):
        return [[instruction.id]]
    users = body.computation.users.get(instruction.id, [])
    if instruction.id == body.computation.root_id or any(user.opcode != "get-tuple-element" for user in users):
        return None
    found: list[list[int]] = [[] for _ in instruction.operands]
    for user in users:
        found[user.message.number(13)].append(user.id)
    return found


def _promoted(module: Module, instruction: Instruction) -> bool:
    """Whether the reduction was one of narrow numbers in the program, by the name that XLA gave to its wide form.

    Of reductions that XLA has combined it has kept the name of the first only.
    """
    return len(instruction.operands) == 1 and module.by_id[instruction.called[0]].message.text(1).endswith("_promoted")


def _origin(module: Module, scope: _Scope, value: int) -> str | None:
    """The type of which all numbers of a value are, though its own is wider."""
    made = scope.computation.by_id[value]
    opcode = made.opcode
    if opcode == "convert":
        narrow = shapes(scope.computation.by_id[made.operands[0]].shape)[0].dtype
        return narrow if shapes(made.shape)[0].dtype in WIDER.get(narrow, ()) else None
    if opcode in _MOVES or opcode in _MOVES_FIRST:
        moved = made.operands if opcode in _MOVES else made.operands[:1]
        found = {_origin(module, scope, operand) for operand in moved}
        return found.pop() if len(found) == 1 else None
    if opcode == "fusion":
        inside = module.by_id[made.called[0]]
        return _origin(module, _Scope(inside, made, scope), inside.root_id)
    if opcode == "parameter" and scope.fusion is not None and scope.outer is not None:
        return _origin(module, scope.outer, scope.fusion.operands[made.message.number(9)])
    return None


def _rounded(module: Module, scope: _Scope, value: int) -> Iterator[str | None]:
    """The types to which the users of a value convert it; None for those that do not."""
    if value == scope.computation.root_id:
        if scope.fusion is None or scope.outer is None:
            yield None
        else:
            yield from _rounded(module, scope.outer, scope.fusion.id)
    for user in scope.computation.users.get(value, ()):
        if user.opcode == "convert":
            yield shapes(user.shape)[0].dtype
        elif user.opcode in _MOVES or (user.opcode in _MOVES_FIRST and user.operands[0] == value):
            yield from _rounded(module, scope, user.id)
        elif user.opcode == "fusion":
            inside = module.by_id[user.called[0]]
            for index, operand in enumerate(user.operands):
                if operand == value:
                    yield from _rounded(module, _Scope(inside, user, scope), inside.parameter(index).id)
        else:
            yield None


def _converted(module: Module, made: Instruction) -> int | None:
    """The operand of an instruction that is a conversion and nothing else."""
    if made.opcode == "convert":
        return made.operands[0]
    if made.opcode == "fusion":
        inside = module.by_id[made.called[0]]
        if len(inside.instructions) == 2 and inside.by_id[inside.root_id].opcode == "convert":
            return made.operands[0]
    return None


def _is_convert_to(module: Module, made: Instruction, dtype: str) -> bool:
    return _converted(module, made) is not None and shapes(made.shape)[0].dtype == dtype


def _only_for(body: Body, user: Instruction, made: Instruction) -> bool:
    return made.id != body.computation.root_id and body.computation.users[made.id] == [user]


def _editable(module: Module, made: Instruction) -> bool:
    """Whether it is a loop over elements, in which a conversion costs no pass over memory."""
    if made.opcode != "fusion" or made.message.text(11) != "kLoop" or is_tuple(made.shape):
        return False
    return all(each.opcode not in _IN_PLACE for each in module.by_id[made.called[0]].instructions)


def _round_root(body: Body, fusion: Instruction, dtype: str) -> None:
    """XLA gives each fusion a computation of its own, so that this changes no other."""
    inside = body.module.by_id[fusion.called[0]]
    root = inside.root()
    shape = of_dtype(root.shape, dtype)
    identifier = inside.new_id()
    inside.instructions.append(_convert(identifier, shape, root.id))
    inside.message.put(6, identifier)
    program = inside.message.message(4)
    program.put(2, shape)
    inside.message.put(4, program)
    body.module.change(inside)
    fusion.message.put(3, of_dtype(fusion.shape, dtype))


def _widen_parameter(module: Module, fusion: Instruction, index: int, dtype: str) -> None:
    inside = module.by_id[fusion.called[0]]
    wide = inside.parameter(index)
    narrow = Instruction(Message(bytes(wide.message)))
    identifier = inside.new_id()
    shape = of_dtype(wide.shape, dtype)
    narrow.message.put(1, f"jaxring_narrow.{identifier >> 32}.{identifier & 0xFFFFFFFF}")
    narrow.message.put(3, shape)
    narrow.change("parameter", identifier)
    at = inside.instructions.index(wide)
    inside.instructions[at : at + 1] = [narrow, _convert(wide.id, wide.shape, identifier, wide.name)]
    program = inside.message.message(4)
    shapes_of = program.all(1)
    shapes_of[index] = shape
    program.put_all(1, shapes_of)
    inside.message.put(4, program)
    module.change(inside)


def _convert(identifier: int, shape: bytes, operand: int, name: str = "") -> Instruction:
    name = name or f"jaxring_convert.{identifier >> 32}.{identifier & 0xFFFFFFFF}"
    return Instruction(Message.of((1, name), (2, "convert"), (3, shape), (35, identifier), (36, packed([operand]))))
