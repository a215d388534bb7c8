"""Whether XLA may let a collective write its result over its operand.

Letting the result take the operand's memory costs nothing where the operand is not used later. Where it is, XLA first
copies it, on one thread and into untouched pages, which takes longer than the collective. A program's argument that
its caller has not donated is such an operand, which can be detected when the call is lowered.
"""

from __future__ import annotations

from typing import Any


def stays(module_context: Any, value: Any) -> bool:
    """Whether an operand of a call that is being lowered is, but for its shape, an argument that is not donated.

    JAX lowers a shard_map separately from the program around it. There, an argument of the shard_map counts as one of
    the program if the program has none that are donated; if it is computed before, the result takes memory of its own.
    False in functions and loops, because their callers decide about their arguments.
    """
    while True:
        owner = value.owner
        if hasattr(owner, "operation"):
            operation = owner.operation
            if operation.name != "stablehlo.reshape":
                return False
            value = operation.operands[0]
            continue
        # The argument of a block; the owner's owner is what the block is the body of.
        operation = owner.owner.operation
        if operation.name == "sdy.manual_computation":
            value = operation.operands[value.arg_number]
            continue
        if operation.name != "func.func":
            return False
        attributes = operation.attributes
        if "sym_visibility" not in attributes and attributes["sym_name"].value == "shard_map":
            functions = module_context.symbol_table
            return "main" in functions and not any(map(_donated, _arguments(functions["main"])))
        if attributes["sym_name"].value != "main":
            return False
        return not _donated(_arguments(operation)[value.arg_number])


def _arguments(function: Any) -> list[Any]:
    return list(function.operation.attributes["arg_attrs"])


def _donated(attributes: Any) -> bool:
    return "jax.buffer_donor" in attributes or "tf.aliasing_output" in attributes
