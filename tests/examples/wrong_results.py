"""Runs an example with collectives whose results are 3% too large.

usage: wrong_results.py SCRIPT
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import runpy
import sys
from typing import Any

import jax
import numpy as np

import jaxring


def enlarged(x: Any) -> Any:
    # What was started is not only arrays.
    return x * 1.03 if hasattr(x, "dtype") and np.issubdtype(x.dtype, np.inexact) else x


def wrong(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(enlarged, function(*args, **kwargs))

    return call


@contextlib.contextmanager
def installed(**options: Any) -> Any:
    with right_installed(**options):
        jax.lax.psum, right = wrong(jax.lax.psum), jax.lax.psum
        try:
            yield
        finally:
            jax.lax.psum = right


NAMES = (
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_to_all",
    "matmul_reduce_scatter",
    "permute",
    "ragged_all_to_all",
    "recv",
    "reduce_scatter",
    "reproducible_sum",
)

for name in NAMES:
    setattr(jaxring, name, wrong(getattr(jaxring, name)))
jaxring.collectives.all_reduce = jaxring.all_reduce  # for jaxring.data_parallel and jaxring.overlap_gradients
jaxring.moe.combine = wrong(jaxring.moe.combine)
jaxring.Communicator.all_reduce = wrong(jaxring.Communicator.all_reduce)
jaxring.installed, right_installed = installed, jaxring.installed

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)  # as it is for a script
    runpy.run_path(sys.argv[0], run_name="__main__")
