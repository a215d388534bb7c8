"""A hash of the operations that compute a call's operands. It distinguishes call sites of different programs.

Processes find each other's call sites by name, and call sites of different programs may otherwise look the same: one
function, jitted twice with different constants, calls a collective in one line. The same program gives the same hash in
every process. The hash covers everything back to the arguments of the function that is lowered, whose values are not
known before the function is called. Programs with equal hashes must be launched in the same order in every process,
which JAX requires of all programs.

Attributes are read as text only. Making a Python object of an attribute ends the process where jaxlib has no class for
it, as for a constant of complex numbers; no handler can catch that.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import Any, NamedTuple

from jaxring.tracing.lowering.per_thread import PerThread

# Names of functions and of other symbols in an operation's text. A string that matches by chance does no harm.
_SYMBOL = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w$.-]+)')
# Data that a constant names in place of holding it, and where MLIR prints it. Its name depends on earlier programs.
_RESOURCE = re.compile(r'dense_resource<("(?:[^"\\]|\\.)*"|[\w$.-]+)>')
_DATA = re.compile(r'^ *("(?:[^"\\]|\\.)*"|[\w$.-]+): ("0x[0-9A-F]*")', re.MULTILINE)


class _Program(NamedTuple):
    """The program that a thread lowers, and the digests of its values and functions: many calls depend on most."""

    module: Any
    known: dict[Any, bytes]


_program = PerThread(_Program(None, {}))


def fingerprint(module_context: Any, operands: list[Any]) -> str:
    """A hash of all operations behind the operands."""
    if _program.get().module is not module_context.module:
        _program.set(_Program(module_context.module, {}))
    known = _program.get().known
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
    known = _program.get().known
    if operation not in known:
        known[operation] = _hash(operation.name.encode(), *behind, _whole(operation, _text(operation), functions))
    return _hash(known[operation], str(value.result_number).encode(), str(value.type).encode())


def _text(operation: Any) -> str:
    """Attributes and regions. Nothing is left out of large constants, whose bytes MLIR prints in hexadecimal."""
    if operation.regions:
        # To print it where it stands numbers all values of the function around it, for each such operation.
        return _printed(operation.clone(ip=False))
    attributes = operation.attributes
    return "\n".join(repr(attributes[i]) for i in range(len(attributes)))


def _whole(operation: Any, text: str, functions: Any) -> bytes:
    """A digest of an operation's text, of all functions that it names, and of the data that it refers to."""
    known = _program.get().known
    named = []
    for name in dict.fromkeys(match[1].strip('"') for match in _SYMBOL.finditer(text)):
        if name not in known and name in functions:
            known[name] = b""  # a function that names itself
            function = functions[name].operation
            known[name] = _whole(function, _printed(function), functions)
        named.append(known.get(name, b""))
    if _RESOURCE.search(text):
        data = _resources(operation)
        text = _RESOURCE.sub(lambda match: data.get(match[1], ""), text)
    return _hash(text.encode(), *named)


def _printed(operation: Any) -> str:
    text: str = operation.get_asm(use_local_scope=True, assume_verified=True)
    return text


def _resources(operation: Any) -> dict[str, str]:
    """Data by name. It is printed with what is outermost."""
    with contextlib.suppress(ValueError):  # by which jaxlib says that nothing holds an operation
        while operation.parent is not None:
            operation = operation.parent.operation
    whole: str = operation.get_asm(large_elements_limit=1, assume_verified=True)
    return dict(_DATA.findall(whole.rpartition("{-#")[2]))


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
