"""The custom call that takes the place of a collective, as an instruction of HLO."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

import jaxring._native as _native
from jaxring.dropin.whole_program.unserved import UnservedError
from jaxring.dropin.whole_program.wire import Message, packed
from jaxring.plan import dtypes
from jaxring.plan.collectives import CALLS
from jaxring.runtime import programs
from jaxring.runtime.call import CallSpec, attributes
from jaxring.settings import settings
from jaxring.tracing.lowering.op_names import op_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.dropin.whole_program.body import Body
    from jaxring.dropin.whole_program.hlo import Instruction, Module, Shape

_TYPED_FFI = 4


class Calls:
    """Makes the calls of one module, and numbers them: in the same order in every process."""

    def __init__(self, module: Module, program: str) -> None:
        self._module, self._program = module, program
        self._specs: list[str] = []
        self.pending: list[tuple[CallSpec, str, str]] = []

    def checked(self, op: str | None, shape: Shape) -> None:
        """Raises UnservedError for a type that the engine does not have, or has no such reduction of."""
        try:
            if op is None:
                dtypes.dtype_code(shape.dtype)
            else:
                dtypes.check(op, shape.dtype)
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
        aliases: dict[int, int] | None = None,
    ) -> tuple[str, list[int], list[tuple[int, int | bytes | str | Message]]]:
        """A call for ``site``: its name, its operands, and its fields but for those that every instruction has.

        ``data``: for each of its collectives a rank's operand, or a block of it where it has one for each rank.
        ``buffer_per_block``: each block is an operand of its own, and a result.
        """
        size, shown = groups.shape[1], self._shown(body, site, len(data))
        facts = CALLS[collective]
        blocks = (size,) if facts.blocks_in and not facts.ragged else ()
        specs = []
        for shape in data:
            self.checked(op, shape)
        for shape, place in zip(data, shown, strict=True):
            spec = CallSpec(
                collective=collective,
                op=op,
                dtype=shape.dtype,
                shape=(*blocks, *shape.dims),
                block=math.prod(shape.dims),
                axes=f"{size} of {self._module.partitions} devices",
                timeout=settings().timeout,
                # Not the place in the source: a process may have traced a function elsewhere than another one.
                site=self._module.name,
                call=len(self._specs),
                devices=self._module.devices,
                program=self._program,
                perm=perm,
            )
            text = spec.to_json()
            self._specs.append(text)
            self.pending.append((spec, text, place))
            specs.append(text)
        nbytes = sum(math.prod((*blocks, *each.dims)) * dtypes.element_bytes(each.dtype) for each in data)
        name = op_name(collective, op, nbytes, [f"{size}_of_{self._module.partitions}"], len(data))
        given = attributes(
            facts,
            specs,
            groups,
            settings().timeout,
            row_elements=row_elements,
            buffer_per_block=buffer_per_block,
            shown=shown if any(shown) else (),
        )
        all_operands = [*operands, body.partition_id()]
        fields: list[tuple[int, int | bytes | str | Message]] = [
            (28, facts.target),
            (43, mlir_dictionary(given)),
            (56, 1),
            *((57, body.shape(each)) for each in all_operands),
            (77, _TYPED_FFI),
        ]
        for operand, result in (aliases or {}).items():
            fields.append((74, Message.of((1, packed([result] if len(data) > 1 else [])), (2, operand))))
        return name, all_operands, fields

    def _shown(self, body: Body, site: Instruction, count: int) -> list[str]:
        """The place of each of ``count`` collectives in the program, a line each."""
        found = [self._module.places.site(site.metadata)] * count
        if len(site.operands) == count > 1:
            found = self._module.places.sites(site.metadata, [body.made(each).metadata for each in site.operands])
        return [" ".join(each.split("\n")) for each in found]

    def done(self) -> None:
        """Says to the runtime that the module has these calls, which are instantiated next."""
        token = object()
        for spec, text, shown in self.pending:
            programs.note(token, self._module.name, spec, text, shown, here=False)
        _native.end_program(sorted(self._specs))


def mlir_dictionary(values: dict[str, Any]) -> str:
    """A dictionary attribute as MLIR's text, which is how a typed call's configuration is written in HLO."""
    return "{" + ", ".join(f"{name} = {_mlir(value)}" for name, value in sorted(values.items())) + "}"


def _mlir(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(_CHARACTERS)}"'
    if isinstance(value, np.int64):
        return f"{value} : i64"
    if isinstance(value, np.float64):
        return f"{float(value):.17e} : f64"
    if isinstance(value, np.ndarray) and value.dtype == np.int32:
        return f"dense<{json.dumps(value.tolist())}> : tensor<{value.size}xi32>"
    raise TypeError(f"no MLIR text for {value!r}")


_CHARACTERS = {ord("\\"): "\\5C", ord('"'): "\\22"} | {c: f"\\{c:02X}" for c in (*range(32), 127)}
