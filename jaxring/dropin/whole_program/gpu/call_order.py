"""The calls of a computation run one after another, in one order in all processes.

XLA's scheduler is free to choose an order for calls that do not need each other, and all ranks of a communicator must
begin its calls in the same one. So each call takes the partition's number from the call before it, and hands it on in
the same memory. Without that no call overtakes another on one GPU either: XLA's stream, and under the settings that the
engine accepts (`jaxring.runtime.cuda.xla_settings`) also its CUDA graphs, run one after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.gpu.dependencies import as_ready, in_order, needs
from jaxring.dropin.whole_program.rewrite import OPCODES
from jaxring.dropin.whole_program.shapes import is_tuple
from jaxring.runtime.service import COLLECTIVE_TARGETS, STARTS, UNCAPTURED

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module

CALLS = frozenset({*COLLECTIVE_TARGETS, *UNCAPTURED, *STARTS.values()})
_SHAPE, _TARGET, _ID, _OPERANDS, _ALIASING, _INDEX, _NAME = 3, 28, 35, 36, 74, 13, 1


def arrange(computation: Computation) -> None:
    """Brings collectives, and calls of the program's own, in the order in which they are ready."""
    chosen = [each.id for each in computation.instructions if each.opcode in OPCODES or _is_call(each)]
    order = as_ready(computation, chosen)
    before = dict(zip(order[1:], order, strict=False))

    def needed(instruction: Instruction) -> list[int]:
        return [*needs(instruction), *([before[instruction.id]] if instruction.id in before else [])]

    computation.take(list(in_order(computation.instructions, needed)))


def chain(module: Module, computation: Computation) -> bool:
    """Makes each call need the one before it. Returns whether there are two or more."""
    if sum(map(_is_call, computation.instructions)) < 2:
        return False
    body = Body(module, computation)
    link: int | None = None
    for each in computation.instructions:
        if not _is_call(each):
            body.keep(each)
            continue
        *operands, partition = each.operands
        link = _linked(body, each, operands, partition if link is None else link)
    computation.take(body.instructions)
    return True


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and instruction.message.text(_TARGET) in CALLS


def _linked(body: Body, call: Instruction, operands: list[int], link: int) -> int:
    """Appends the call with the partition's number as a further result, and what stands for the call; that result."""
    scalar = body.shape(link)
    several = is_tuple(call.shape)
    parts = Message(call.shape).all(4) if several else [call.shape]
    fields = [
        (number, value if several or number != _ALIASING else _in_tuple(value))
        for number, _, value in call.message.fields
        if number not in (_NAME, 2, _SHAPE, _ID, _OPERANDS)
    ]
    whole = bytes(Message.of((2, 13), *((4, part) for part in (*parts, scalar))))
    aliased = Message.of((1, packed([len(parts)])), (2, len(operands)))
    made = body.make("custom-call", whole, [*operands, link], *fields, (_ALIASING, aliased), name=call.name)
    if several:
        results = [body.make("get-tuple-element", part, [made], (_INDEX, i)) for i, part in enumerate(parts)]
        body.replace(call, "tuple", results)
    else:
        body.replace(call, "get-tuple-element", [made], (_INDEX, 0))
    return body.make("get-tuple-element", scalar, [made], (_INDEX, len(parts)))


def _in_tuple(aliasing: int | bytes) -> bytes:
    """The aliasing of a call's only result, which becomes the first of several."""
    assert isinstance(aliasing, bytes)
    return bytes(Message.of((1, packed([0])), *((n, v) for n, _, v in Message(aliasing).fields if n != 1)))
