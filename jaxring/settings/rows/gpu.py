"""The CUDA engine."""

from __future__ import annotations

import dataclasses

from jaxring.plan.gpu import experimental
from jaxring.settings import kinds
from jaxring.settings.row import row


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Settings of the CUDA engine alone."""

    p2p: tuple[str, ...] = row(
        "list",
        ("direct",),
        "How GPUs reach each other's memory: direct: in place, also XLA's buffers; staged: XLA's buffers are not "
        "shared with GPUs of other processes but copied to and from jaxring's own memory; none: not at all, their data "
        "goes over the network transports. With shared beside it, as in staged,shared, several processes may use one "
        "GPU, which is an error otherwise.",
        kinds.p2p,
        shared=True,
        engines="GPU",
    )
    cuda_trap: bool = row(
        "flag",
        True,
        "0: a failed collective does not end its GPU's context; its data may be used before the next call raises.",
        kinds.flag,
        engines="GPU",
    )
    cuda_bulk_bytes: int = row(
        "bytes",
        0,
        "Slices of at least this size that are only moved use bulk copies (cp.async.bulk), on GPUs of compute "
        "capability 9.0 and later; 0: never." + experimental.mark("bulk_copies", " This is ", "."),
        kinds.nbytes(0, 1 << 40),
        engines="GPU",
    )
