"""From one serialized module to the next: every collective that the engine can carry becomes a custom call."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from jaxring import _compat
from jaxring.dropin.whole_program import gpu
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.calls import Calls
from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module
from jaxring.dropin.whole_program.rewrite import OPCODES, rewrite
from jaxring.dropin.whole_program.shapes import shapes
from jaxring.dropin.whole_program.unserved import UnservedError
from jaxring.runtime.cuda.service import prepare_lowering
from jaxring.runtime.explain import note

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("jaxring.install")

_SEARCHED = tuple(opcode.encode() for opcode in sorted(OPCODES))
_CALL = b"jaxring_"
# What tells a collective apart, beside its opcode: result, dimensions, groups, pairs. Not ids nor metadata, which may
# differ between processes.
_IDENTITY = frozenset({3, 14, 49, 52, 71, 87, 92, 93})
_warned: set[str] = set()


def transform(data: bytes, on_gpus: bool = False) -> bytes | None:
    """What XLA calls with each module that it compiles: the module to go on with, None for the same one.

    An exception would fail the user's compilation. The module stays as it is instead, which is warned of once.
    """
    if not any(text in data for text in _searched(on_gpus)):
        return None
    try:
        return _transformed(Module(data, on_gpus))
    except Exception:
        _warn_once(
            "jaxring.install(whole_program=True) failed on a module, which keeps XLA's collectives; please report it",
            trace=True,
        )
        return None


def _transformed(module: Module) -> bytes | None:
    if module.partitions == module.replicas == 1:
        return None
    holding = list(_holding(module))
    found = [each for _, computation in holding for each in computation.instructions if each.opcode in OPCODES]
    if not holding or not (found or module.on_gpus):
        return None
    if module.replicas != 1:
        for instruction in found:
            _say(module, instruction, "the program has replicas")
        return None
    if module.on_gpus:
        try:
            prepare_lowering()
        except RuntimeError as error:  # jaxring was built without CUDA
            for instruction in found:
                _say(module, instruction, str(error))
            return None
    calls = Calls(module, _fingerprint(module, found))
    ordered = False
    for index, computation in holding:
        if module.on_gpus:
            calls.started = gpu.prepare(module, computation)
        body = Body(module, computation)
        for instruction in computation.instructions:
            if instruction.opcode in OPCODES:
                try:
                    rewrite(body, calls, instruction)
                    continue
                except UnservedError as why:
                    _say(module, instruction, str(why))
            body.keep(instruction)
        if module.on_gpus:
            computation.take(body.instructions)
            ordered |= gpu.chain(module, computation)
            body.instructions = computation.instructions
        module.message.fields[index] = (3, 2, body.finish())
    if not calls.pending and not ordered:
        return None
    if module.donates and _compat.transformed_modules_lose_donation():
        _warn_once(
            "this jaxlib forgets what a program donates when jaxring.install(whole_program=True) has changed the "
            "program: results are right, and donated arrays stay alive. From jaxlib 0.11 on they do not."
        )
    module.write_changed()
    calls.done()
    return bytes(module.message)


def _holding(module: Module) -> Iterator[tuple[int, Computation]]:
    """The computations in which a collective may be; on GPUs also a call of the program's own, which has an order."""
    data = bytes(module.message)
    texts = [text for text in _searched(module.on_gpus) if text in data]
    for index, computation in module.computations:
        if any(text in computation.data for text in texts):
            yield index, computation


def _searched(on_gpus: bool) -> tuple[bytes, ...]:
    return (*_SEARCHED, _CALL) if on_gpus else _SEARCHED


def _fingerprint(module: Module, found: list[Instruction]) -> str:
    """A hash of the module's name and its collectives in their order, the same in every process.

    Nothing else goes in: fusions depend on the host's processor, and callbacks on what the process did before.
    """
    digest = hashlib.blake2b(module.name.encode(), digest_size=8)
    for instruction in found:
        digest.update(instruction.opcode.encode())
        for number, _, value in instruction.message.read():
            if number in _IDENTITY:
                digest.update(f"{number}:{value!r};".encode())
        for called in instruction.called:
            digest.update(module.reduction(called)[0].encode())
    return digest.hexdigest()


def _say(module: Module, instruction: Instruction, why: str) -> None:
    what = ", ".join(map(str, shapes(instruction.shape)))
    place = module.places.site(instruction.metadata)
    text = f"{instruction.opcode} {what} at {place} in {module.name}: XLA's own collective: {why}"
    if note(text):
        log.warning("jaxring: %s", text)


def _warn_once(text: str, trace: bool = False) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning(text, exc_info=trace)
