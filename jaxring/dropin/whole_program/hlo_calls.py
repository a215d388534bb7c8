"""The custom call that takes the place of a collective, as an instruction of HLO."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import jaxring._native as _native
from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.unserved import UnservedError
from jaxring.plan import dtypes
from jaxring.plan.collectives import CALLS
from jaxring.runtime import programs
from jaxring.runtime.call import CallSpec, attributes
from jaxring.runtime.service import JOIN, STARTS
from jaxring.settings import settings
from jaxring.tracing import oracle
from jaxring.tracing.lowering.op_names import op_name
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.dropin.whole_program.body import Body
    from jaxring.dropin.whole_program.hlo import Instruction, Module
    from jaxring.dropin.whole_program.shapes import Shape

_TYPED_FFI = 4
# What XLA must neither merge nor leave out; and where its scheduler places it (xla.CustomCallSchedule).
_SIDE_EFFECT, _SCHEDULE = 65, 76
_LATEST, _EARLIEST = 1, 2


Fields = list[tuple[int, "int | bytes | str | Message"]]


class _What(NamedTuple):
    """What decides about a call, but for its number, its place and its operands: a program has many that are alike.

    ``data``: see `Calls.target`. ``groups``: partition ids as int32, group after group.
    """

    collective: str
    op: str | None
    data: tuple[Shape, ...]
    groups: bytes
    group_size: int
    perm: tuple[tuple[int, int], ...]
    row_elements: int
    buffer_per_block: bool
    started: bool


class _Kind(NamedTuple):
    """What is the same in all such calls.

    ``specs``: for each collective its spec with the number 0, and the spec's text before and after the number.
    ``attributes``: their MLIR texts, but for those of numbers and places.
    """

    name: str
    target: str
    specs: list[tuple[CallSpec, str, str]]
    attributes: dict[str, str]


class Calls:
    """Makes the calls of one module, and numbers them: in the same order in every process."""

    def __init__(self, module: Module, program: str) -> None:
        self._module, self._program, self._timeout = module, program, settings().timeout
        # The ids of the collectives that are started, and joined later.
        self.started: frozenset[int] = frozenset()
        self._specs: list[str] = []
        self._kinds: dict[_What, _Kind] = {}
        self.pending: list[tuple[CallSpec, str, str]] = []

    def checked(self, op: str | None, shape: Shape) -> None:
        """Raises UnservedError for a type that the engine does not have, or has no such reduction of."""
        try:
            if op is None:
                dtypes.dtype_code(shape.dtype)
            else:
                dtypes.check(op, shape.dtype)
                if self._module.on_gpus and not dtypes.find(shape.dtype).on_gpus:
                    raise UnservedError(f"{shape.dtype} is reduced on CPUs only")
        except TypeError as error:
            raise UnservedError(str(error)) from None

    def serves(self, op: str | None, data: Sequence[Shape]) -> bool:
        """Whether the engine has all these types, and such a reduction of them."""
        try:
            for shape in data:
                self.checked(op, shape)
        except UnservedError:
            return False
        return True

    def target(
        self,
        body: Body,
        site: Instruction,
        collective: str,
        data: Sequence[Shape],
        groups: np.ndarray,
        operands: list[int],
        *,
        op: str | None = None,
        perm: tuple[tuple[int, int], ...] = (),
        row_elements: int = 0,
        buffer_per_block: bool = False,
        started: bool = False,
        aliases: dict[int, int] | None = None,
    ) -> tuple[str, list[int], Fields]:
        """A call for ``site``: its name, its operands, and its fields but for those that every instruction has.

        ``data``: for each of its collectives a rank's operand, or a block of it where it has one for each rank.
        ``buffer_per_block``: each block is an operand of its own, and a result. ``started``: it runs on a stream of its
        own until it is joined (`join`).
        """
        kind = self._kind(
            _What(
                collective,
                op,
                tuple(data),
                groups.astype(np.int32).tobytes(),
                groups.shape[1],
                perm,
                row_elements,
                buffer_per_block,
                started,
            )
        )
        shown = self._shown(body, site, len(data))
        texts = []
        for (spec, before, after), place in zip(kind.specs, shown, strict=True):
            text = f"{before}{len(self._specs)}{after}"
            self._specs.append(text)
            self.pending.append((spec, text, place))
            texts.append(text)
        given = kind.attributes | {"spec": _mlir("\n".join(texts))}
        if any(shown):
            given["shown"] = _mlir("\n".join(shown))
        all_operands = [*operands, body.partition_id()]
        fields: Fields = [
            *_target(body, kind.target, given, all_operands),
            *((_SIDE_EFFECT, 1), (_SCHEDULE, _EARLIEST)) * started,
            # What is started needs its operand until the join.
            *_aliased({} if started else aliases or {}, len(data)),
        ]
        return kind.name, all_operands, fields

    def _kind(self, what: _What) -> _Kind:
        """Raises UnservedError for a type that the engine does not have, or has no such reduction of."""
        if what not in self._kinds:
            self._kinds[what] = self._new_kind(what)
        return self._kinds[what]

    def _new_kind(self, what: _What) -> _Kind:
        facts, size = CALLS[what.collective], what.group_size
        blocks = (size,) if facts.blocks_in and not facts.ragged else ()
        for shape in what.data:
            self.checked(what.op, shape)
        specs = []
        for shape in what.data:
            spec = CallSpec(
                collective=facts.name,
                op=what.op,
                dtype=shape.dtype,
                shape=(*blocks, *shape.dims),
                block=math.prod(shape.dims),
                axes=f"{size} of {self._module.partitions} devices",
                timeout=self._timeout,
                # Not the place in the source: a process may have traced a function elsewhere than another one.
                site=self._module.name,
                call=0,
                devices=self._module.devices,
                program=self._program,
                perm=what.perm,
                started=what.started,
            )
            specs.append((spec, *spec.around_call()))
        nbytes = sum(math.prod((*blocks, *each.dims)) * dtypes.element_bytes(each.dtype) for each in what.data)
        given = attributes(
            facts,
            (),
            np.frombuffer(what.groups, np.int32).reshape(-1, size),
            self._timeout,
            row_elements=what.row_elements,
            buffer_per_block=what.buffer_per_block,
            started=what.started,
        )
        return _Kind(
            op_name(facts.name, what.op, nbytes, [f"{size}_of_{self._module.partitions}"], len(what.data)),
            STARTS[facts.target] if what.started else facts.target,
            specs,
            {name: _mlir(value) for name, value in given.items()},
        )

    def _shown(self, body: Body, site: Instruction, count: int) -> list[str]:
        """The place of each of ``count`` collectives in the program, a line each."""
        places = self._module.places
        found = [places.site(each) for each in self._module.joined.get(site.id, [site.metadata] * count)]
        if len(site.operands) == count > 1 and site.id not in self._module.joined:
            found = places.sites(site.metadata, [body.made(each).metadata for each in site.operands])
        return [" ".join(each.split("\n")) for each in found]

    def join(self, body: Body, operands: list[int], results: int) -> Fields:
        """The fields of a call that waits for what was started. The first so many operands are its results."""
        return [
            *_target(body, JOIN, {"started": _mlir(np.arange(results))}, operands),
            (_SIDE_EFFECT, 1),
            (_SCHEDULE, _LATEST),
            *_aliased({i: i for i in range(results)}, results),
        ]

    def done(self) -> None:
        """Says to the runtime that the module has these calls, which are instantiated next."""
        token = object()
        for spec, text, shown in self.pending:
            programs.note(token, self._module.name, spec, text, shown, here=False)
            oracle.leave_out(Unchecked.INSERTED, spec.collective, shown or spec.site)
        if not self._module.on_gpus:  # the CUDA engine tells sites apart by their spec
            _native.end_program(sorted(self._specs))


def _target(body: Body, target: str, given: dict[str, str], operands: list[int]) -> Fields:
    layouts: Fields = [(57, body.shape(each)) for each in operands]
    return [(28, target), (43, mlir_dictionary(given)), (56, 1), *layouts, (77, _TYPED_FFI)]


def _aliased(results: dict[int, int], count: int) -> Fields:
    """By operand, of a call with so many results."""
    return [
        (74, Message.of((1, packed([result] if count > 1 else [])), (2, operand)))
        for operand, result in results.items()
    ]


def mlir_dictionary(values: dict[str, str]) -> str:
    """A dictionary attribute as MLIR's text, which is how a typed call's configuration is written in HLO.

    ``values``: the texts of its values.
    """
    return "{" + ", ".join(f"{name} = {value}" for name, value in sorted(values.items())) + "}"


def _mlir(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\5C").replace('"', "\\22")
        if not quoted.isprintable():
            quoted = _CONTROL.sub(lambda found: f"\\{ord(found[0]):02X}", quoted)
        return f'"{quoted}"'
    if isinstance(value, np.int64):
        return f"{value} : i64"
    if isinstance(value, np.float64):
        return f"{float(value):.17e} : f64"
    if isinstance(value, np.ndarray) and value.dtype in (np.int32, np.int64):
        return f"dense<{value.tolist()}> : tensor<{value.size}xi{8 * value.itemsize}>"
    raise TypeError(f"no MLIR text for {value!r}")


_CONTROL = re.compile("[\0-\x1f\x7f]")
