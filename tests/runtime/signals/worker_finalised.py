"""An interrupted process that waits at its very end, where no thread of Python runs any more."""

from __future__ import annotations

import ctypes

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start


class Waits:
    """As destructors of JAX's clients do: while the interpreter is finalised, and with its lock."""

    def __init__(self):
        self.sleep = ctypes.PyDLL(None).sleep

    def __del__(self):
        self.sleep(100)


mesh = start()
a = rows(mesh.size, 16, "float32")
check(over(mesh, lambda v: jaxring.all_reduce(v, AXIS))(put(mesh, a)), same(a.sum(0), mesh.size))
waits = Waits()
raise KeyboardInterrupt
