"""The memory of large results of the arithmetic."""

from __future__ import annotations

import pathlib
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxring.compress import native
from jaxring.compress.formats import FORMATS

_ENABLED = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(), reason="this kernel gives no huge pages"
)
def test_a_large_result_is_not_touched_page_by_page():
    form, count = FORMATS["int8"], 32 << 18  # 32 MiB of float32
    rows, key = native.Rows(1, count, count), jnp.zeros(3, np.uint32)
    codes = native.quantize(form, jnp.ones(count), key, rows, native.Rounding(False))
    decode = jax.jit(lambda codes: native.dequantize(form, codes, key, rows))
    kept = [jax.block_until_ready(decode(codes)) for _ in range(2)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept += [jax.block_until_ready(decode(codes)) for _ in range(4)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    pages = 4 * 4 * count // resource.getpagesize()
    assert faults < pages / 4, (faults, pages)
    np.testing.assert_allclose(kept[-1], np.ones(count), rtol=1 / 250)
