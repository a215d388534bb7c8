"""The name of a collective in profiles: XLA names an op, and so its event in a trace, by the op's location."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.extend.mlir import ir

if TYPE_CHECKING:
    from collections.abc import Sequence


def traced_as(ctx: Any, collective: str, op: str | None, nbytes: int, axes: Sequence[str], count: int = 1) -> Any:
    """A context in which emitted ops are named ``jaxring_all_reduce_sum_4096B_over_data`` in profiles.

    ``nbytes``: the operands' bytes per rank, of all ``count`` collectives in the call. XLA makes "_" of characters
    other than letters, digits, ".", "-".
    """
    size = [f"{nbytes}B", *([f"in_{count}"] if count > 1 else [])]
    words = ["jaxring", collective, *([op] if op else []), *size, "over", *axes]
    scope = str(ctx.name_stack)
    name = "/".join([*([scope] if scope else []), "_".join(words)])
    return ir.Location.name(name, childLoc=ir.Location.current)
