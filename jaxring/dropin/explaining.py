"""`jaxring.explain`: what has run so far, or every collective of a compiled program."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

import jaxring._native as _native
from jaxring.dropin import explanation
from jaxring.dropin.whole_program.hlo import Instruction, Module
from jaxring.dropin.whole_program.rewrite import OPCODES
from jaxring.dropin.whole_program.shapes import shapes
from jaxring.errors import JoinError
from jaxring.runtime import schedules
from jaxring.runtime.call import CallSpec
from jaxring.runtime.call_topology import of_ranks
from jaxring.runtime.choice import choose
from jaxring.runtime.explain import called, recorded
from jaxring.runtime.placement import RankPlace, device_owners
from jaxring.runtime.service import STARTS, job
from jaxring.runtime.survivors import present
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.runtime.call_topology import CallTopology

_TEXT = re.compile(r'\b(spec|shown) = "((?:[^"\\]|\\.)*)"', re.DOTALL)
_GROUPS = re.compile(r"\bgroups = dense<\[([0-9, ]*)\]>")
_SIZE = re.compile(r"\bgroup_size = ([0-9]+) : i64")
_ASSUMED = "; as on one host"
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")


class Engine(enum.Enum):
    """Whose engine carries a collective."""

    JAXRING = "jaxring's"
    XLA = "XLA's"


def explain(compiled: jax.stages.Compiled | None = None, *, clear: bool = False) -> str:
    """A line for each kind of decision so far: what ran where, by which algorithm, protocol and transport, and why.

    Then a line for each call that `jaxring.install` left to JAX's or XLA's own collectives, or replicated, and why;
    with JAXRING_CHECKSUM=oracle for each call that this does not check, and why (XLA's own are never checked). And one
    that says how threads wait for messages at the moment, which depends on the processes and CPUs of the host.

    With ``compiled`` a line for each collective of that program, in the program's order: whether the program called it
    or XLA inserted it, bytes per rank, groups, the choice among the ranks of the first group, and what it is predicted
    to take, on the hosts of these ranks. Before the processes have joined each other, which a first collective between
    them does, one host is assumed, and the line says so. On GPUs the choice is made when the program first runs, by
    what the GPUs are.

    Args:
        compiled: What ``jax.jit(f).lower(...).compile()`` has returned. None: what ran so far in this process.
        clear: Forgets these decisions afterwards, those of `jaxring.plans`, too: the next call lists what is planned
            from here on. A call that was planned before is not planned again.

    Returns:
        Lines of text, as a `str`. A notebook, a Python prompt, and `print` on a terminal show a table of them, which
        for what ran so far also has the time at which each was planned, how many of the last operations it was (the
        engine records 4096), and the median of the time that these took in this process. Elsewhere, and by the methods
        of `str`, there are the lines alone.

    Raises:
        ValueError: For an executable whose program XLA does not tell, and for ``clear`` with ``compiled``.

    Examples:
        After a step of training:

            step(params, batch)
            print(jaxring.explain())
    """
    if compiled is None:
        decisions, notes = recorded(clear)
        if decisions:
            notes[f"Threads that wait for messages on CPUs: {_native.wait_policy()}."] = 1
        return explanation.of_decisions(decisions, notes)
    if clear:
        raise ValueError("jaxring.explain: clear is for what ran so far; leave it out where a program is given.")
    found = listed(compiled)
    rows = [(each.what, each.site, each.engine.value, each.how) for each in found]
    text = "\n".join(map(str, found)) or "jaxring: there is no collective in this program."
    return explanation.Explanation(text, lambda: explanation.Table(("call", "at", "engine"), rows))


class Listed(NamedTuple):
    """A collective of a compiled program. ``engine``: whose it is. The other fields are for people."""

    what: str
    site: str
    engine: Engine
    how: str

    def __str__(self) -> str:
        return f"{self.what} at {self.site}: {self.how}"


def listed(compiled: jax.stages.Compiled) -> list[Listed]:
    """The collectives of a compiled program, in its order. ValueError for one whose program XLA does not tell."""
    found: list[Listed] = []
    executable: Any = compiled.runtime_executable()
    try:
        modules = executable.hlo_modules()
    except (AttributeError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(f"jaxring.explain: XLA does not tell the program of this executable: {error}") from None
    on_gpus = _on_gpus(compiled)
    for module in modules:
        found += _listed(Module(module.as_serialized_hlo_module_proto(), on_gpus))
    return found


def _on_gpus(compiled: jax.stages.Compiled) -> bool:
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    return any(device.platform in ("gpu", "cuda") for each in shardings for device in each.device_set)


def _listed(module: Module) -> Iterator[Listed]:
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in OPCODES:
                what = ", ".join(map(str, shapes(instruction.shape)))
                place = module.places.site(instruction.metadata) or "?"
                yield Listed(f"{instruction.opcode} {what}", place, Engine.XLA, "XLA's own collective")
            elif instruction.opcode == "custom-call" and instruction.message.text(28).startswith("jaxring_"):
                yield from _calls(module, instruction)


def _calls(module: Module, instruction: Instruction) -> Iterator[Listed]:
    """The collectives of one custom call of ours."""
    config = instruction.message.text(43)
    texts = {name: _ESCAPE.sub(_character, text) for name, text in _TEXT.findall(config)}
    if not texts.get("spec"):
        return  # it only waits for one
    started = ", started and joined later" if instruction.message.text(28) in STARTS.values() else ""
    sites = texts.get("shown", "").splitlines()
    size = int(match[1]) if (match := _SIZE.search(config)) else 1
    listed = [int(n) for n in match[1].split(",")] if (match := _GROUPS.search(config)) else list(range(size))
    for i, text in enumerate(texts["spec"].splitlines()):
        spec = CallSpec.from_json(text)
        site = sites[i] if i < len(sites) else spec.site
        chosen = "chosen when it first runs" if module.on_gpus else _chosen(spec, listed[:size])
        what = _described(spec, size, module.partitions)
        yield Listed(what, site, Engine.JAXRING, f"{_origin(sites)}{started}; {chosen}")


def _described(spec: CallSpec, size: int, partitions: int) -> str:
    epilogue, compress = spec.epilogue.text if spec.epilogue else "", spec.codes.form if spec.codes else ""
    what = called(spec.collective, spec.op, epilogue, compress)
    shape = ",".join(map(str, spec.shape))
    nbytes = shown(spec.operand_bytes(size))
    return f"{what} {spec.dtype}[{shape}] {nbytes} in {partitions // size} group(s) of {size} over {spec.axes}"


def _origin(sites: list[str]) -> str:
    return "inserted by XLA" if sites else "called by the program"


def _chosen(spec: CallSpec, group: list[int]) -> str:
    owners = device_owners("cpu")
    devices = [spec.devices[partition] for partition in group] if spec.devices is not None else group
    placement = [RankPlace(owners.get(device, 0), device) for device in devices]
    topology, assumed = None, ""
    try:
        left = present(spec, placement, job().membership())
        if not left:
            return "none of its processes is left"
        processes = [placement[rank].process for rank in left]
        if len(set(processes)) > 1:
            topology, assumed = _published(processes)
        domains = schedules.domains(processes, spec.by_messages)
        root = left.index(spec.root) if spec.root in left else 0
        choice = choose(spec, domains, root=root, **(topology or of_ranks(processes, None))._asdict())
    except ValueError as error:
        return str(error)
    prediction = f"; {choice.prediction}" if choice.prediction else ""
    how = f"{choice.algorithm}, protocol {choice.protocol}, {choice.channels} channel(s)"
    return f"{how}: {choice.reason}{prediction}{assumed}"


def _published(processes: list[int]) -> tuple[CallTopology | None, str]:
    """The topology of a call among ranks of several processes, or None and why these are not known."""
    try:
        world = job().world_of(processes)
        if world is not None:
            return of_ranks(processes, world), ""
    except JoinError as error:
        return None, f"{_ASSUMED}: {error}"
    return None, f"{_ASSUMED}: these processes have not joined each other yet"


def _character(escaped: re.Match[str]) -> str:
    """Of MLIR's text: two hexadecimal digits, or the character itself."""
    return chr(int(escaped[1], 16)) if len(escaped[1]) == 2 else escaped[1]
