"""Rank 1's operand holds NaN; every rank learns of that, and each process ends as soon as it has."""

from __future__ import annotations

import numpy as np
import pytest

import jaxring
from jaxring.world import launch

launch.initialize()
comm = jaxring.Communicator(timeout=60)
for _ in range(3):
    comm.all_reduce(np.ones(3, np.float32))
operand = np.array([0, 1, np.nan if comm.rank == 1 else 2], np.float32)
named = r"operand of rank 1 \(process 1 on .*\) holds NaN, first at element 2\."
with pytest.raises(jaxring.JaxringError, match=named):
    comm.all_reduce(operand)
print("told", flush=True)
