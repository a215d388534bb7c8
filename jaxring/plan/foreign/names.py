"""How MSCCL and MSCCL++ name collectives and buffers: one record for their readers and writers."""

from __future__ import annotations

from jaxring.plan.schedule import Buffer

# By the name here; both formats leave out the underscore.
FROM_THEIRS = {
    name.replace("_", ""): name for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
}
TO_THEIRS = {name: theirs for theirs, name in FROM_THEIRS.items()}
BUFFERS = {Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}
