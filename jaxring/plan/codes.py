"""The messages of an all-reduce as quantised codes: what a call says of them to its plan."""

from __future__ import annotations

import dataclasses

# An element of the values, which are float32.
_VALUE_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodesSpec:
    """How the values of a call are encoded where they are sent.

    ``form``: the format's name. ``number``: that of `QuantFormat` in ffi/quantize/quantize.h. ``block``: elements of a
    block, of which messages have whole ones. ``block_bytes``: of its codes. ``stochastic``, ``first_word``: how values
    are rounded, as in `Rounding` there.
    """

    form: str
    number: int
    block: int
    block_bytes: int
    stochastic: bool
    first_word: int

    def __str__(self) -> str:
        """All of it in words, for people."""
        return f"{self.form}, rounded {'at random' if self.stochastic else 'to nearest'}"

    def nbytes(self, values: int) -> int:
        """Bytes of the codes of so many bytes of values."""
        return -(-values // (self.block * _VALUE_BYTES)) * self.block_bytes
