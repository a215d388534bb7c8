"""What the lowering remembers for each thread.

Not a `threading.local`: JAX lowers partition functions (`jax.experimental.custom_partitioning`) on a thread of XLA's,
which is one of Python's only while it does. When its thread-locals are freed there is no Python thread any more, and
objects of MLIR, which look for it, end the process.
"""

from __future__ import annotations

import collections
import threading
from typing import Generic, TypeVar

T = TypeVar("T")

# How many threads' values are kept; threads come and go.
_MOST = 64


class PerThread(Generic[T]):
    """A value for each thread, `initial` where it has set none. Old threads' values are dropped."""

    def __init__(self, initial: T) -> None:
        self._initial = initial
        self._values: collections.OrderedDict[int, T] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self) -> T:
        """This thread's value."""
        with self._lock:
            return self._values.get(threading.get_ident(), self._initial)

    def set(self, value: T) -> None:
        """Sets this thread's value."""
        dropped = None  # freed without the lock
        with self._lock:
            here = threading.get_ident()
            former = self._values.pop(here, None)
            self._values[here] = value
            if len(self._values) > _MOST:
                dropped = self._values.popitem(last=False)
        del former, dropped
