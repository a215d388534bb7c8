"""What all processes know of an array that is resharded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    import numpy as np


class Facts(NamedTuple):
    """Of one array: what it is, and the shardings that it has and is to have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Any
    target: Any

    @property
    def nbytes(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def processes(self) -> set[int]:
        """Those that have a part of the array or of the result."""
        return {device.process_index for device in self.source.device_set | self.target.device_set}

    @property
    def absent(self) -> Any:
        """What stands for the result in a process that has no part of it."""
        struct: Any = jax.ShapeDtypeStruct
        return struct(self.shape, self.dtype, sharding=self.target)
