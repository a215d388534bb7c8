"""The XLA custom call that a collective lowers to: its attributes, and the specification for the planner.

Data is in whole blocks: where a collective splits or concatenates data, the blocks are the leading axis, so that the
engine works on contiguous memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo

from jaxring import _compat
from jaxring.plan.collectives import CALLS
from jaxring.runtime import programs
from jaxring.runtime.call import CallSpec, attributes
from jaxring.tracing.lowering import fusion, platforms
from jaxring.tracing.lowering.fingerprint import fingerprint
from jaxring.tracing.lowering.op_names import traced_as
from jaxring.tracing.lowering.replica_groups import replica_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.codes import CodesSpec
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


def custom_call(
    ctx: Any,
    operands: list[Any],
    *,
    collective: str,
    axes: Axes,
    options: Options,
    data: Any,
    aliases: dict[int, int] | None = None,
    row_elements: int = 0,
    joins: bool = False,
    codes: CodesSpec | None = None,
) -> Any:
    """Emits the custom call and returns its results. The partition id is appended to ``operands``.

    ``data`` is the abstract value whose blocks move. ``aliases`` maps the index of an operand to that of the result
    that shares its buffer. ``row_elements`` is the unit of the offsets and sizes of a ragged collective, 0 for all
    others. With ``joins`` the call may be fused with its neighbours into one (`fusion.py`). ``codes``: how its messages
    are encoded.

    The attributes hold everything that all processes must agree on; the engine hands ``spec`` back to the planner.
    """
    partitions = axes.partitions()
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    devices = tuple(int(d.id) for d in mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else None
    facts = CALLS[collective]
    spec = CallSpec(
        collective=collective,
        op=options.op,
        dtype=data.dtype.name,
        shape=tuple(data.shape),
        block=math.prod(facts.block_shape(data.shape)),
        axes=str(axes),
        root=options.root,
        perm=options.perm,
        tag=options.tag,
        algorithm=options.algorithm,
        protocol=options.protocol,
        timeout=options.timeout,
        site=options.site,
        # The same number in every process that lowers the program.
        call=ctx.module_context.new_channel(),
        devices=devices,
        program=fingerprint(ctx.module_context, operands),
        parts=options.parts,
        epilogue=options.epilogue,
        codes=codes,
    )
    text = spec.to_json()
    # A capture cannot read the partition id, from which a program over an abstract mesh learns its ranks.
    captured = devices is not None or platforms.for_cpus(ctx) or bool(options.started)
    target = facts.target if captured else facts.uncaptured_target
    program = str(ctx.module_context.module.operation.attributes["sym_name"]).strip('"')
    programs.note(_compat.lowering_token(ctx.module_context), program, spec, text)
    nbytes = math.prod(data.shape) * data.dtype.itemsize

    def emit(operands: Sequence[Any], avals_in: Any, avals_out: Any, specs: list[str], nbytes: int, pairs: Any) -> Any:
        partition_id = jax.core.ShapedArray((), np.dtype(np.uint32))
        inner = ctx.replace(avals_in=[*avals_in, partition_id], avals_out=avals_out)
        rule = jax.ffi.ffi_lowering(target, operand_output_aliases=pairs, has_side_effect=facts.side_effect)
        partition = hlo.partition_id()
        with traced_as(ctx, collective, options.op, nbytes, [str(name) for name in axes.names], len(specs)):
            results: Any = rule(
                inner,
                *operands,
                partition,
                **attributes(
                    facts,
                    specs,
                    partitions,
                    options.timeout,
                    row_elements=row_elements,
                    started=bool(options.started),
                    epilogue=options.epilogue,
                    codes=codes is not None,
                ),
            )
        call: Any = results[0].owner
        call.attributes["jaxring_call"] = replica_groups(collective, axes, ctx.module_context.module)
        return results

    def build(leaves: Sequence[fusion.Leaf]) -> Any:
        whole = sum(leaf.nbytes for leaf in leaves)
        operands, avals_in, avals_out = ([leaf[i] for leaf in leaves] for i in range(3))
        pairs = {i: i for i, leaf in enumerate(leaves) if leaf.aliased}
        return emit(operands, avals_in, avals_out, [leaf.spec for leaf in leaves], whole, pairs)

    if not joins:
        return emit(operands, ctx.avals_in, ctx.avals_out, [text], nbytes, aliases)
    leaf = fusion.Leaf(operands[0], ctx.avals_in[0], ctx.avals_out[0], text, nbytes, bool(aliases))
    key = (collective, axes, options.op, options.timeout)
    return [fusion.emit(ctx.module_context.module, key, leaf, build)]
