"""What a compressed collective sends: one record for each format.

A block of `BLOCK` elements is a float32 scale and a code for each element; bfloat16 has no scale. ffi/quantize/ and
`jaxring.compress.portable` compute the codes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxring.tracing.axes import shown

BLOCK = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One format.

    ``number``: that of `QuantFormat` in ffi/quantize/quantize.h.
    ``bits``: of a code.
    ``limit``: what the largest magnitude of a block is scaled to; 0 where the format has no scale.
    ``marked_limit``: the same in a block with NaN or infinity, whose codes need room for these.
    ``infinity``, ``minus_infinity``, ``nan``: those codes.
    """

    name: str
    number: int
    bits: int
    limit: float
    marked_limit: float = 0
    infinity: int = 0
    minus_infinity: int = 0
    nan: int = 0

    @property
    def scaled(self) -> bool:
        """Whether its blocks have a scale."""
        return self.limit != 0

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of `BLOCK` elements."""
        return BLOCK * self.bits // 8 + (4 if self.scaled else 0)

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of so many elements, in whole blocks."""
        return -(-elements // BLOCK) * self.block_bytes


FORMATS = {
    each.name: each
    for each in (
        Format(
            name="int8",
            number=0,
            bits=8,
            limit=127,
            marked_limit=126,
            infinity=0x7F,
            minus_infinity=0x81,
            nan=0x80,
        ),
        Format(
            name="int4",
            number=1,
            bits=4,
            limit=7,
            marked_limit=6,
            infinity=0x7,
            minus_infinity=0x9,
            nan=0x8,
        ),
        Format(
            name="fp8_e4m3",
            number=2,
            bits=8,
            limit=448,
            marked_limit=416,
            infinity=0x7E,
            minus_infinity=0xFE,
            nan=0x7F,
        ),
        Format(name="bf16", number=3, bits=16, limit=0),
    )
}


def find(what: str, compress: Any) -> Format:
    """The format of that name. ValueError names the choices."""
    if not isinstance(compress, str) or compress not in FORMATS:
        raise ValueError(
            f"jaxring.{what}: compress={shown(compress)} is not served; use one of {', '.join(FORMATS)}, or None to "
            "send values as they are."
        )
    return FORMATS[compress]
