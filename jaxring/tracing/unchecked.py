"""What JAXRING_CHECKSUM=oracle leaves out, and why: the record of `jaxring.explain`, the command and the page."""

from __future__ import annotations

import enum


class Unchecked(enum.Enum):
    """A kind of calls that are not computed a second way. ``calls``: which; ``why``: the reason."""

    BARRIER = "`barrier`", "it moves no data"
    MESSAGE = (
        "messages between two ranks: `send`, `recv`",
        "what `recv` gives is the operand of another call, a `send` that is found by tag and order when both run",
    )
    RAGGED = (
        "ragged collectives: `ragged_all_to_all`, `jaxring.moe`",
        "which rows go where is known when the call runs, and the second way follows whole blocks",
    )
    EPILOGUE = "calls with `epilogue`", "the second way has no functions that are applied to a result"
    COMPRESSED = "calls with `compress`", "compression changes values by more than the bound of a sum allows"
    STARTED = (
        "calls that start early: `jaxring.overlap`, `overlap_gradients`, `diloco`",
        "where the call is made there is no result yet",
    )
    PRODUCT = (
        "`all_gather_matmul`, `matmul_reduce_scatter`",
        "their chunks travel while others are computed, so where each chunk is sent there is no result yet",
    )
    REPRODUCIBLE = "`reproducible_sum`", "it also adds the elements of each operand, which no collective does"
    RESHARD = "`reshard`", "it is made of ragged collectives"
    VMAPPED = (
        "calls over an axis of `jax.vmap`",
        "what is left for the devices is decided by rules for batching, after the check would be put into the program",
    )
    DERIVATIVE = (
        "collectives that derivatives are made of",
        "rules for derivatives make them, after the check would be put into the program",
    )
    INSERTED = (
        "collectives that the compiler inserts, and those that `install` leaves to JAX",
        "no call of jaxring's puts a check beside them",
    )
    COMMUNICATOR = "`Communicator`s", "their calls are in no program of JAX's, into which the check would be put"

    def __init__(self, calls: str, why: str) -> None:
        self.calls, self.why = calls, why


_BY_CALL = {
    "barrier": Unchecked.BARRIER,
    "send": Unchecked.MESSAGE,
    "recv": Unchecked.MESSAGE,
    "ragged_all_to_all": Unchecked.RAGGED,
}


def of_call(name: str) -> Unchecked | None:
    """Why no call of this name is checked; None where those are that nothing else excludes."""
    return _BY_CALL.get(name)


def sentence(what: Unchecked, call: str) -> str:
    """That ``call``, such as "send at step.py:3", is not checked, and why."""
    return f"JAXRING_CHECKSUM=oracle does not check {call}: {what.why}"
