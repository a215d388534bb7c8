"""Makes native plans of the CUDA engine from schedules: chooses the kernel or the copies that run them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxring.plan import dtypes, protocols
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.runtime import schedules
from jaxring.runtime.cuda import copy_engine as cuda_copy_engine
from jaxring.runtime.cuda import nvls as cuda_nvls
from jaxring.settings import origins, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.choice import Choice
    from jaxring.plan.schedule import Schedule
    from jaxring.runtime.call import CallSpec

# The kernels' number of the one-shot all-reduce, and that of no fused kernel; others are in the collectives' records.
_ONE_SHOT, _NOT_FUSED = 0, -1
# Seconds that a launch waits for a peer where nobody said how long. A launch that gives up costs the process its GPU,
# so it does not while another process compiles or saves a checkpoint. The end of a process is noticed at once.
PATIENT_S = 1800.0


def build(
    native: Any,
    spec: CallSpec,
    schedule: Schedule,
    choice: Choice,
    local: Sequence[int],
    nbytes: int,
    threads: int,
    call: int,
) -> Any:
    """The native plan builder, filled: ``local`` are the ranks of this process, ``threads`` those of a block where the
    settings do not say, ``call`` a number of 32 bits that all ranks have of this call, and no others."""
    ranks, op = schedule.spec.nranks, spec.op
    plan = native.PlanBuilder()
    plan.set_identity(spec.describe(), deadline(spec.timeout), spec.root, call)
    plan.set_range(
        f"{spec.collective}{' ' + op if op else ''} {nbytes}B over {spec.axes}: {choice.algorithm}/{choice.protocol}"
    )
    code = -1 if op is None else dtypes.REDUCE_OPS[op]
    plan.set_data(dtypes.dtype_code(spec.dtype), code, ranks if op == "mean" else 0, spec.block)
    configured = settings()
    if choice.algorithm == copy_engine.NAME:
        cuda_copy_engine.fill(native, plan, schedule, local, configured.cuda_trap)
        return plan
    if choice.algorithm == nvls.NAME:
        cuda_nvls.fill(plan, schedule, local, choice.channels, threads, configured.cuda_trap)
        return plan
    in_blocks = 0 if spec.half == "recv" else schedule.in_blocks
    out_blocks = 0 if spec.half == "send" else schedule.out_blocks
    plan.set_shape(in_blocks, out_blocks, schedule.pieces, schedule.scratch_chunks, schedule.nlanes)
    fused = _NOT_FUSED
    if spec.epilogue is not None:
        further = [dtypes.dtype_code(each) for each in spec.epilogue.further]
        plan.set_epilogue(list(spec.epilogue.functions), dtypes.dtype_code(spec.epilogue.result), further)
    elif choice.protocol == "memory" and ranks > 1 and schedule.spec.facts.gpu_fused is not None:
        fused = _ONE_SHOT if choice.one_shot else schedule.spec.facts.gpu_fused
    in_place = "staged" not in configured.p2p
    plan.set_kernel(protocols.GPU[choice.protocol], fused, threads, configured.cuda_trap, in_place)
    plan.set_bulk(configured.cuda_bulk_bytes)
    for rank in local:
        plan.add_local(rank, *schedules.table(schedule, rank), schedule.uses_memory(rank))
    return plan


def deadline(timeout: float) -> float:
    """How long a launch waits for its peers in seconds, where ``timeout`` is its call's: longer where that is
    JAXRING_TIMEOUT's default and nobody set it."""
    by_default = not origins(os.environ)["TIMEOUT"].name and timeout == settings().timeout
    return max(timeout, PATIENT_S) if by_default else timeout
