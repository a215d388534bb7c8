"""Whole programs that can be measured: plain `jax.jit` over sharded arrays, whose collectives XLA inserts."""

from __future__ import annotations

import dataclasses

# What each is, and what its size counts.
PROGRAMS = {
    "sum": "a sum over the sharded dimension; its result",
    "gather": "a sharded array made whole everywhere; its result",
    "transpose": "sharded rows that become sharded columns; a device's part",
    "roll": "a sharded array moved on by a device's part; a device's part",
    "reshard": "rows, columns, moved on, rows, whole; a device's part",
    "fft": "a two-dimensional Fourier transform of sharded rows, with two transpositions; a device's part",
    "data_parallel": "a training step of two layers, the batch sharded; all parameters",
    "fsdp": "the same step with sharded parameters, too; all parameters",
    "tensor_parallel": "a transformer block, forward and backward, its heads and hidden units sharded; its activations",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """One measurement: a program of `PROGRAMS` of one size, in float32 (complex64 for ``fft``).

    ``nbytes``: what the table of programs says that its size counts. Dimensions are whole numbers of what each device
    has, so that programs are a little larger or smaller than that. ``alone``: only the collectives that XLA inserts
    into it, ``chain`` times in one program.
    """

    program: str
    nbytes: int
    inplace: bool = False
    chain: int = 1
    alone: bool = False

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program

    @property
    def what(self) -> str:
        """What titles say of it."""
        return f"collectives of program {self.program}" if self.alone else f"program {self.program}"

    @property
    def checked(self) -> bool:
        """Whether results are compared with right ones."""
        return True

    def moved(self, ranks: int) -> int:
        """The size that tables show."""
        del ranks
        return self.nbytes
