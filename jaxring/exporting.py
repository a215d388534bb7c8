"""Help for `jax.export`, which refuses custom calls that it does not know."""

from __future__ import annotations

import jax.export

from jaxring.runtime.service import (
    DEQUANTIZE,
    GIVE_EXACT_SUMS,
    QUANTIZE,
    ROUND_EXACT_SUMS,
    SUM_QUANTIZED,
    TARGETS,
    UNCAPTURED,
)


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What to pass as ``disabled_checks`` to `jax.export.export` for programs that use jaxring.

    The process that runs the exported program has to import jaxring before it calls it.

    Returns:
        A check for each of jaxring's custom calls.

    Examples:
        For a function `step` that uses jaxring:

            exported = jax.export.export(step, disabled_checks=jaxring.export_checks())(params, batch)
    """
    targets = (*TARGETS, *UNCAPTURED, QUANTIZE, SUM_QUANTIZED, DEQUANTIZE, GIVE_EXACT_SUMS, ROUND_EXACT_SUMS)
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
