"""From one serialized module to the next: every collective that the engine can carry becomes a custom call."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
from typing import TYPE_CHECKING

from jaxring import _compat
from jaxring._protobuf import Message
from jaxring.dropin.whole_program import gpu
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.hlo import Instruction, Module
from jaxring.dropin.whole_program.hlo_calls import Calls
from jaxring.dropin.whole_program.rewrite import OPCODES, rewrite
from jaxring.dropin.whole_program.shapes import shapes
from jaxring.dropin.whole_program.unserved import UnservedError
from jaxring.runtime.cuda.service import prepare_lowering
from jaxring.runtime.explain import note

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("jaxring.install")

_COMPUTATIONS, _INSTRUCTIONS, _OPCODE, _TARGET = 3, 2, 2, 28
_COLLECTIVES = [opcode.encode() for opcode in sorted(OPCODES)]
_CALLS = [target.encode() for target in sorted(gpu.CALLS)]
# What tells a collective apart, beside its opcode: result, dimensions, groups, pairs. Not ids nor metadata, which may
# differ between processes.
_IDENTITY = (3, 14, 49, 52, 71, 87, 92, 93)
_warned: set[str] = set()


def transform(data: bytes, on_gpus: bool = False) -> bytes | None:
    """What XLA calls with each module that it compiles: the module to go on with, None for the same one.

    An exception would fail the user's compilation. The module stays as it is instead, which is warned of once.
    """
    try:
        holding = _holding(Message(data), on_gpus)
        if not holding:
            return None
        with _without_collector():
            return _transformed(Module(data, on_gpus), holding)
    except Exception:
        _warn_once(
            "jaxring.install(whole_program=True) failed on a module, which keeps XLA's collectives; please report it",
            trace=True,
        )
        return None


def _transformed(module: Module, positions: list[int]) -> bytes | None:
    if module.partitions == module.replicas == 1:
        return None
    holding = [module.computations[position] for position in positions]
    found = [each for computation in holding for each in computation.instructions if each.opcode in OPCODES]
    if not (found or module.on_gpus):
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
    for computation in holding:
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
        computation.written = body.finish()
    if not calls.pending and not ordered:
        return None
    if module.donates and _compat.transformed_modules_lose_donation():
        _warn_once(
            "this jaxlib forgets what a program donates when jaxring.install(whole_program=True) has changed the "
            "program: results are right, and donated arrays stay alive. From jaxlib 0.11 on they do not."
        )
    data = module.written()
    calls.done()  # last: the runtime would wait for the calls of a module that could not be written
    return data


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Stops Python's collector of cycles meanwhile, in the whole process.

    The thousands of small objects that are made of a module hold no cycles and are gone at the end. Their number would
    start collections, of which one that visits all objects of the process takes longer than all of the rewriting. Where
    another thread stops the collector meanwhile, for a purpose of its own, it runs again at the end.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _holding(message: Message, on_gpus: bool) -> list[int]:
    """The positions of the computations that hold a collective; on GPUs also a call of ours, which has an order."""
    found = message.holding((_COMPUTATIONS, _INSTRUCTIONS, _OPCODE), _COLLECTIVES)
    if on_gpus:
        calls = message.holding((_COMPUTATIONS, _INSTRUCTIONS, _TARGET), _CALLS)
        found = sorted({*found, *calls})
    return found


def _fingerprint(module: Module, found: list[Instruction]) -> str:
    """A hash of the module's name and its collectives in their order, the same in every process.

    Nothing else goes in: fusions depend on the host's processor, and callbacks on what the process did before.
    """
    digest = hashlib.blake2b(module.name.encode(), digest_size=8)
    for instruction in found:
        digest.update(instruction.opcode.encode())
        for number, value in instruction.message.select(_IDENTITY):
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
