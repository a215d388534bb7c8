"""The name of a collective in profiles: XLA names an op, and so its event in a trace, by the op's location."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

if TYPE_CHECKING:
    from collections.abc import Sequence


def op_name(collective: str, op: str | None, nbytes: int, axes: Sequence[str], count: int = 1) -> str:
    """``jaxring_all_reduce_sum_4096B_over_data``.

    ``nbytes``: the operands' bytes per rank, of all ``count`` collectives in the call.
    """
    size = [f"{nbytes}B", *([f"in_{count}"] if count > 1 else [])]
    return "_".join(["jaxring", collective, *([op] if op else []), *size, "over", *axes])


def traced_as(ctx: Any, collective: str, op: str | None, nbytes: int, axes: Sequence[str], count: int = 1) -> Any:
    """A context in which emitted ops have that name in profiles.

    XLA makes "_" of characters other than letters, digits, ".", "-".
    """
    scope = str(ctx.name_stack)
    name = "/".join([*([scope] if scope else []), op_name(collective, op, nbytes, axes, count)])
    return ir.Location.name(name, childLoc=ir.Location.current)
