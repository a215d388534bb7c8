"""How each collective of HLO becomes a custom call. Data is in whole blocks, as the engine needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxring._protobuf import Message
from jaxring.dropin.whole_program import replica_groups
from jaxring.dropin.whole_program.narrow import narrow_dtypes, narrow_operands, narrow_results
from jaxring.dropin.whole_program.shapes import is_tuple, shapes
from jaxring.dropin.whole_program.unserved import UnservedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.dropin.whole_program.body import Body
    from jaxring.dropin.whole_program.hlo import Instruction, Module
    from jaxring.dropin.whole_program.hlo_calls import Calls
    from jaxring.dropin.whole_program.shapes import Shape

_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "minimum": "min",
    "maximum": "max",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
# A logical sum, which XLA may spell as an arithmetic one.
_OF_BOOLS = {"sum": "or", "prod": "and"}


def rewrite(body: Body, calls: Calls, instruction: Instruction) -> None:
    """Appends what replaces a collective to ``body``. Raises UnservedError; nothing is appended then."""
    if instruction.channel <= 0:
        raise UnservedError("it goes over replicas")
    _RULES[instruction.opcode](body, calls, instruction)


def _operands(body: Body, instruction: Instruction) -> list[Shape]:
    found = []
    for operand in instruction.operands:
        if is_tuple(body.shape(operand)):
            raise UnservedError("an operand is a tuple")
        found.append(shapes(body.shape(operand))[0])
    return found


def groups_of(module: Module, instruction: Instruction) -> np.ndarray:
    """Partition ids in rank order, one row per group. Raises UnservedError where the engine cannot have such groups."""
    partitions = module.partitions
    if instruction.opcode in _GLOBAL_IDS and not instruction.uses_global_ids:
        # The ids are those of replicas, of which there is one: all of its partitions take part.
        return np.arange(partitions).reshape(1, partitions)
    return replica_groups.groups(instruction, partitions)


def _op(body: Body, instruction: Instruction, data: Shape) -> str:
    opcode = body.reduction(instruction)
    if opcode not in _REDUCTIONS:
        raise UnservedError(f"its reduction is {opcode}")
    op = _REDUCTIONS[opcode]
    return _OF_BOOLS.get(op, op) if data.dtype == "bool" else op


def _whole_blocks(shape: Shape, dimension: int) -> None:
    if not shape.in_whole_blocks(dimension):
        raise UnservedError("its blocks are not contiguous")


def _one_call(
    body: Body,
    calls: Calls,
    instruction: Instruction,
    collective: str,
    data: list[Shape],
    groups: np.ndarray,
    *,
    op: str | None = None,
    aliases: dict[int, int] | None = None,
    buffer_per_block: bool = False,
    perm: tuple[tuple[int, int], ...] = (),
) -> None:
    """One custom call in place of the instruction, with the same operands and results.

    It is done in the narrow type of the values where XLA has widened them. With ``buffer_per_block`` ``data`` is one
    shape, that of each operand and result; else it has a shape for each operand.
    """
    matching = len(shapes(instruction.shape)) == len(data) and is_tuple(instruction.shape) == (len(data) > 1)
    if not data or not (buffer_per_block or matching):
        raise UnservedError("its results do not match its operands")
    given, aliases = instruction.operands, aliases or {}
    dtypes = narrow_dtypes(body, instruction, op)
    narrow: list[Shape] = []
    # A shape that stands for several operands is that of them all.
    if any(dtypes) and (len(data) == len(given) or len(set(dtypes)) == 1):
        narrow = [shape._replace(dtype=dtype or shape.dtype) for shape, dtype in zip(data, dtypes, strict=False)]
    if narrow and calls.serves(op, narrow):
        data, operands = narrow, narrow_operands(body, instruction, dtypes)
        handed_on = narrow_results(body, instruction, dtypes)
        aliases = {i: j for i, j in aliases.items() if operands[i] == given[i] and j not in handed_on}
    else:
        operands = given
    started = instruction.id in calls.started
    name, operands, fields = calls.target(
        body,
        instruction,
        collective,
        data,
        groups,
        operands,
        op=op,
        aliases=aliases,
        started=started,
        buffer_per_block=buffer_per_block,
        perm=perm,
    )
    if not started:
        body.replace(instruction, "custom-call", operands, *fields, name=name)
        return
    kept = instruction.message.select((7, 37, 68))
    start = body.make("custom-call", body.shape_of(instruction), operands, *fields, *kept, name=name)
    results = [start]
    if len(data) > 1:
        parts = Message(body.shape_of(instruction)).all(4)
        results = [body.make("get-tuple-element", part, [start], (13, i)) for i, part in enumerate(parts)]
    # The operands stay in memory until then, and nothing but the join touches the results.
    joined = [*results, *instruction.operands]
    body.replace(instruction, "custom-call", joined, *calls.join(body, joined, len(results)), name="jaxring_join")


def _all_reduce(body: Body, calls: Calls, instruction: Instruction) -> None:
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    op = _op(body, instruction, data[0])
    # On GPUs XLA inserts copies later, where a result must not take its operand's memory.
    may_alias = body.uses.alone if body.module.on_gpus else body.uses.may_alias
    aliases = {i: i for i, operand in enumerate(instruction.operands) if may_alias(instruction, operand)}
    _one_call(body, calls, instruction, "all_reduce", data, groups, op=op, aliases=aliases)


def _all_gather(body: Body, calls: Calls, instruction: Instruction) -> None:
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    for shape in data:
        _whole_blocks(shape, instruction.dimensions[0])
    _one_call(body, calls, instruction, "all_gather", data, groups)


def _reduce_scatter(body: Body, calls: Calls, instruction: Instruction) -> None:
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    dimension = instruction.dimensions[0]
    for shape in data:
        _whole_blocks(shape, dimension)
    blocks = [shape.split(dimension, groups.shape[1]) for shape in data]
    op = _op(body, instruction, data[0])
    _one_call(body, calls, instruction, "reduce_scatter", blocks, groups, op=op)


def _all_to_all(body: Body, calls: Calls, instruction: Instruction) -> None:
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    ranks = groups.shape[1]
    if not is_tuple(instruction.shape):
        dimension = instruction.dimensions[0]
        _whole_blocks(data[0], dimension)
        blocks = [shape.split(dimension, ranks) for shape in data]
        _one_call(body, calls, instruction, "all_to_all", blocks, groups)
        return
    block = data[0]
    if len(data) != ranks or any(shape != block for shape in (*data, *shapes(instruction.shape))):
        raise UnservedError("its operands and results are not one alike for each rank")
    _one_call(body, calls, instruction, "all_to_all", [block], groups, buffer_per_block=True)


def _permute(body: Body, calls: Calls, instruction: Instruction) -> None:
    data = _operands(body, instruction)
    everybody = np.arange(body.module.partitions).reshape(1, -1)
    _one_call(body, calls, instruction, "permute", data, everybody, perm=instruction.pairs)


def _broadcast(body: Body, calls: Calls, instruction: Instruction) -> None:
    """From the first rank of each group."""
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    _one_call(body, calls, instruction, "broadcast", data, groups)


def _ragged(body: Body, calls: Calls, instruction: Instruction) -> None:
    """The receiver has to know where rows land and how many come, which HLO says to the sender: two all-to-alls."""
    data, groups = _operands(body, instruction), groups_of(body.module, instruction)
    operand, output, *vectors = data
    ranks = groups.shape[1]
    if any(vector.dims != (ranks,) or vector.dtype not in ("int32", "int64") for vector in vectors):
        raise UnservedError("its offsets and sizes are not a vector of int32 or int64 with an entry for each rank")
    if operand.order != output.order or operand.order[:1] != (0,):
        raise UnservedError("its rows are not contiguous")
    calls.checked(None, operand)
    given = instruction.operands
    entries = [vectors[2].split(0, ranks), vectors[1].split(0, ranks)]
    said = [given[4], given[3]]
    _, operands, fields = calls.target(body, instruction, "all_to_all", entries, groups, said)
    pair = bytes(Message.of((2, 13), *((4, body.shape(each)) for each in said)))
    told = body.make("custom-call", pair, operands, *fields)
    lands, comes = (body.make("get-tuple-element", body.shape(said[i]), [told], (13, i)) for i in range(2))
    # XLA inserts no more copies, and the output that is given may be used elsewhere.
    result = body.make("copy", body.shape(given[1]), [given[1]])
    passed = [given[0], result, given[2], given[3], lands, given[5], comes]
    rows = int(np.prod(operand.dims[1:], dtype=np.int64))
    name, operands, fields = calls.target(
        body, instruction, "ragged_all_to_all", [operand], groups, passed, row_elements=rows, aliases={1: 0}
    )
    body.replace(instruction, "custom-call", operands, *fields, name=name)


_RULES: dict[str, Callable[[Body, Calls, Instruction], None]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _permute,
    "collective-broadcast": _broadcast,
    "ragged-all-to-all": _ragged,
}
OPCODES = frozenset(_RULES)
# Those that have a call that only starts them.
STARTABLE = OPCODES - {"ragged-all-to-all"}
# Collectives whose ids may be global; the ids of the others are always partition ids.
_GLOBAL_IDS = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
