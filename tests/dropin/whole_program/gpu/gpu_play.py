"""gpu_play.py FOLDER: runs the modules that gpu_compile.py has left in FOLDER, and compares with what XLA computes.

They run on CPU devices. The custom calls are those of the CUDA engine's host half, with the fake GPU below it. Prints a
line for each program.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.runtime.cuda import cudahost_fake as fake  # before jax

import jax  # isort: skip
import numpy as np
from jax._src.interpreters.mlir import merge_mlir_modules
from jax._src.lib.mlir.dialects import func
from jax.extend.core import Primitive
from jax.extend.mlir import hlo_to_stablehlo, ir
from jax.interpreters import mlir

from tests.dropin.whole_program.gpu.gpu_programs import PLAYED, RANKS, SMALL, Programs


def primitive(module: bytes, results: list) -> Primitive:
    """An operation that is the module's program on one device."""
    text = hlo_to_stablehlo(module)
    made = Primitive("played")
    made.multiple_results = True
    made.def_abstract_eval(lambda *_: [jax.core.ShapedArray(r.sharding.shard_shape(r.shape), r.dtype) for r in results])

    def lower(ctx, *operands):
        outer = ctx.module_context
        name = merge_mlir_modules(outer.module, "played", ir.Module.parse(text), dst_symtab=outer.symbol_table)
        types = [ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in ctx.avals_out]
        return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), operands).results

    mlir.register_lowering(made, lower)
    return made


def played(folder: Path, name: str) -> None:
    function, shapes = getattr(Programs(jax.devices(), SMALL), name)()
    random = np.random.default_rng(0)
    arguments = jax.tree.map(
        lambda s: jax.device_put(random.standard_normal(s.shape).astype(s.dtype) * 2, s.sharding), shapes
    )
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    operation = primitive((folder / f"{name}.pb").read_bytes(), expected)
    given = jax.tree.leaves(arguments)
    run = jax.shard_map(
        lambda *args: operation.bind(*args),
        mesh=given[0].sharding.mesh,
        in_specs=tuple(each.sharding.spec for each in given),
        out_specs=[each.sharding.spec for each in expected],
        check_vma=False,
    )
    compiled = jax.jit(run).lower(*given).compile()
    for result, right in zip(compiled(*given), expected, strict=True):
        tolerance = 2e-2 if right.dtype == jax.numpy.bfloat16 else 2e-3
        np.testing.assert_allclose(
            np.asarray(result, np.float64), np.asarray(right, np.float64), rtol=tolerance, atol=tolerance
        )
    calls = re.findall(r'custom_call_target="jaxring_(\w+)"', compiled.as_text())
    print(f"{name}: right, by {' '.join(calls)}")


def main() -> None:
    fake.configure(0, 1, RANKS, 0, survive=False)
    # A call with several results is a tuple in MLIR, which the other partitioner refuses.
    jax.config.update("jax_use_shardy_partitioner", False)
    fake.start()
    for name in PLAYED:
        played(Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
