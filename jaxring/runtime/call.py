"""What a call of a collective is, as it is written into a program and the planner reads it back.

Both ways in which a collective becomes a custom call use it: the lowering of a call in the program
(`tracing/lowering/`), and the rewriting of one that XLA's partitioner has inserted (`dropin/whole_program/`).
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.plan import dtypes
from jaxring.plan.codes import CodesSpec
from jaxring.plan.collectives import CALLS, Collective, Pairs
from jaxring.plan.epilogue import EpilogueSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call: everything that all its processes must agree on. Its JSON text is its identity.

    ``collective``: a name of `CALLS`. ``shape``: the operand's; of a recv the result's. ``block``: elements of a block,
    and of a ragged call those of the whole operand. ``axes``: of the mesh, for people. ``timeout``: in seconds.
    ``site``: where the user called it. ``call``: tells the calls of one program apart. ``devices``: the device id of
    each partition, or None where the program does not know them. ``program``: tells programs apart. ``started``: it
    runs on a stream of its own. ``parts``: how many chunks the pipeline has of which this call moves one; 1 outside of
    pipelines. ``epilogue``: what is applied to the complete values of a reduction. ``codes``: how an all-reduce between
    two ranks encodes its messages.
    """

    collective: str
    op: str | None
    dtype: str
    shape: tuple[int, ...]
    axes: str
    timeout: float
    site: str
    call: int
    devices: tuple[int, ...] | None
    program: str
    block: int
    root: int = 0
    perm: Pairs = ()
    tag: int = 0
    algorithm: str | None = None
    protocol: str | None = None
    started: bool = False
    parts: int = 1
    epilogue: EpilogueSpec | None = None
    codes: CodesSpec | None = None

    @property
    def facts(self) -> Collective:
        """The collective's record."""
        return CALLS[self.collective]

    @property
    def half(self) -> str:
        """The half of a message that it is: "both", "send" or "recv"."""
        return self.facts.half

    @property
    def by_messages(self) -> bool:
        """Whether its ranks reach each other by messages alone, within a process, too."""
        return self.half != "both" or self.codes is not None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block; of a ragged call those of the whole operand."""
        return self.block * dtypes.element_bytes(self.dtype)

    @property
    def message(self) -> str:
        """The dtype and shape, on which the two sides of a message must agree."""
        return f"{self.dtype}{list(self.shape)}"

    def operand_bytes(self, ranks: int) -> int:
        """Bytes of a rank's operand."""
        return self.block_bytes if self.facts.ragged else self.block_bytes * self.facts.in_blocks(ranks)

    def result_bytes(self, blocks: int) -> int:
        """Bytes of a rank's result of so many blocks."""
        dtype = self.dtype if self.epilogue is None else self.epilogue.result
        return self.block * dtypes.element_bytes(dtype) * blocks

    def describe(self, shown: str = "") -> str:
        """The call as messages name it: the collective, its axes, and the place in the source, or ``shown`` for it."""
        what = f"{self.collective} {self.op}" if self.op else self.collective
        shape = ",".join(map(str, self.shape))
        return f"jaxring.{what} of {self.dtype}[{shape}] over {self.axes} at {shown or self.site}"

    def options(self) -> list[str]:
        """What it has beyond that, where it is not the usual."""
        usual = {"root": 0, "perm": (), "tag": 0, "algorithm": None, "protocol": None}
        found = [f"{name} {getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        if self.codes is not None:
            found.append(f"compress {self.codes}")
        return found if self.epilogue is None else [*found, f"epilogue {self.epilogue}"]

    def to_json(self) -> str:
        """Its text, the same in all processes. The engine reads ``collective`` and ``site`` in it."""
        fields = dict(vars(self))
        for name in ("epilogue", "codes"):
            value = fields.pop(name)
            if value is not None:
                fields[name] = dataclasses.asdict(value)
        if self.parts == 1:
            del fields["parts"]
        return _ENCODER.encode(fields)

    def around_call(self) -> tuple[str, str]:
        """Its text before and after the value of ``call``, in which alone many calls of a program differ."""
        # Within a text a quote stands behind a backslash, so it is the name of the field.
        before, name, after = self.to_json().partition('"call":')
        return before + name, after.removeprefix(str(self.call))

    @classmethod
    def from_json(cls, text: str) -> CallSpec:
        """The call of a text that `to_json` made. ValueError or TypeError for another text."""
        raw = json.loads(text)
        for name in ("shape", "devices"):
            raw[name] = None if raw[name] is None else tuple(raw[name])
        raw["epilogue"] = EpilogueSpec.of(raw.get("epilogue"))
        raw["codes"] = CodesSpec(**raw["codes"]) if "codes" in raw else None
        raw["perm"] = tuple((source, target) for source, target in raw["perm"])
        return cls(**raw)


def attributes(
    facts: Collective,
    specs: Sequence[str],
    partitions: np.ndarray,
    timeout: float,
    *,
    row_elements: int = 0,
    started: bool = False,
    buffer_per_block: bool = False,
    shown: Sequence[str] = (),
    epilogue: EpilogueSpec | None = None,
    codes: bool = False,
) -> dict[str, Any]:
    """The attributes of a custom call, typed as the handlers read them (``ffi/xla/cpu_handlers.cc``).

    ``specs``: the texts of the call's collectives. ``partitions``: partition ids, one row per group. ``timeout``: in
    seconds. ``buffer_per_block``: the operand and the result are an array for each block, instead of one of all blocks.
    ``shown``: the place of each collective in the program for people, where its spec does not hold it because processes
    may differ in it. ``epilogue``: its parameters and operands follow the operand, and its states the result.
    ``codes``: the key follows the operand, and where there is a second result, it is what the codes leave out.
    """
    return {
        # The engine makes an operation of each line.
        "spec": "\n".join(specs),
        "groups": partitions.reshape(-1).astype(np.int32),
        "group_size": np.int64(partitions.shape[1]),
        "timeout_s": np.float64(timeout),
        "has_input": facts.half != "recv",
        "has_output": facts.half != "send",
        "row_elements": np.int64(row_elements),
        "started": started,
        **({"buffer_per_block": True} if buffer_per_block else {}),
        **({"shown": "\n".join(shown)} if shown else {}),
        **(
            {"epilogue_operands": np.int64(len(epilogue.further)), "epilogue_states": np.int64(epilogue.states)}
            if epilogue
            else {}
        ),
        **({"codes": True} if codes else {}),
    }
