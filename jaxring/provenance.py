"""Where a call's operands come from, as a hash: what tells call sites of different programs apart.

Processes find each other's call sites by name, and call sites of different programs may look the same otherwise: one
function, jitted with another constant, calls a collective in one line. The same program gives the same hash in every
process. It reaches back to the arguments of the function that is being lowered: what these are is not known before the
function is called. Programs that do the same up to there have to be launched in the same order in every process, as JAX
asks of all programs.
"""

from __future__ import annotations

import hashlib
import math
import threading
from typing import Any

# Larger constants are told apart by their type alone: printing them takes long.
_PRINTED_ELEMENTS = 64


class _Program(threading.local):
    """The program that this thread lowers, and the digests of its values and functions: most are behind many calls."""

    module: Any = None
    known: dict[Any, bytes] = {}  # noqa: RUF012


_program = _Program()


def provenance(module_context: Any, operands: list[Any]) -> str:
    """A hash of all operations behind the operands."""
    if _program.module is not module_context.module:
        _program.module, _program.known = module_context.module, {}
    known = _program.known
    # Depth first without recursion: chains of operations are longer than Python's stack.
    pending = list(operands)
    while pending:
        value = pending[-1]
        behind = [] if value in known else _behind(value)
        missing = [v for v in behind if v not in known]
        if missing:
            pending += missing
            continue
        if value not in known:
            known[value] = _digest(value, [known[v] for v in behind], module_context.symbol_table)
        pending.pop()
    return _hash(*(known[operand] for operand in operands)).hex()


def _behind(value: Any) -> list[Any]:
    """The values of which a value is made: for a loop's or branch's argument, those that enter the loop or branch."""
    owner = value.owner
    return list((owner.owner if _is_block(owner) else owner).operation.operands)


def _is_block(owner: Any) -> bool:
    return not hasattr(owner, "operation")


def _digest(value: Any, behind: list[bytes], functions: Any) -> bytes:
    owner = value.owner
    if _is_block(owner):
        return _hash(b"argument", owner.owner.operation.name.encode(), str(value.arg_number).encode(), *behind)
    operation = owner.operation
    parts = [operation.name.encode(), str(value.result_number).encode(), *behind]
    if operation.regions or operation.name == "func.call":
        parts += _whole(operation, functions)
    elif operation.name == "stablehlo.constant" and math.prod(operation.results[0].type.shape) > _PRINTED_ELEMENTS:
        parts.append(str(operation.results[0].type).encode())
    else:
        attributes = operation.attributes
        parts += [str(attributes[i].attr).encode() for i in range(len(attributes))]
    return _hash(*parts)


def _whole(operation: Any, functions: Any) -> list[bytes]:
    """The text of an operation and of all functions that it calls."""
    called = []
    text: str = operation.get_asm(large_elements_limit=_PRINTED_ELEMENTS, use_local_scope=True)
    for name in _calls(operation):
        if name not in _program.known:
            _program.known[name] = _hash(*_whole(functions[name].operation, functions))
        called.append(_program.known[name])
    return [text.encode(), *called]


def _calls(operation: Any) -> list[str]:
    if operation.name == "func.call":
        return [operation.attributes["callee"].value]
    return [
        name
        for region in operation.regions
        for block in region.blocks
        for inner in block.operations
        for name in _calls(inner.operation)
    ]


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
