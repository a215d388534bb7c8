"""What all processes know of an array that is resharded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    import numpy as np


class Facts(NamedTuple):
    """An array's shape and dtype, the sharding that it has, and the one that it is to have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Any
    target: Any

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array, each once."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def processes(self) -> set[int]:
        """The processes that have a part of the array or of the result."""
        return {device.process_index for device in self.source.device_set | self.target.device_set}

    @property
    def absent(self) -> Any:
        """What stands for the result in a process that has no part of it."""
        struct: Any = jax.ShapeDtypeStruct
        return struct(self.shape, self.dtype, sharding=self.target)
