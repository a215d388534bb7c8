"""A dtype is a row in four files: a tree to which one was added plans it, sums it, and refuses it on GPUs."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

ROWS = {
    "jaxring/plan/dtypes.py": (
        '    _plain("complex128", Family.COMPLEX, 16),\n',
        '    Dtype(name="float8_e3m4", family=Family.FLOAT, bytes=1, accumulator_bytes=4, on_gpus=False),\n',
    ),
    "ffi/reduce/dtypes.h": (
        "  kC128,\n",
        "  kF8E3M4,\n",
    ),
    "ffi/reduce/formats.h": (
        "using Float8E4M3FN = SmallFloat<8, 3, true>;\n",
        "using Float8E3M4 = SmallFloat<8, 4, false>;\n",
    ),
    "ffi/reduce/table.h": (
        "    JAXRING_COMPLEX(double),\n",
        "    JAXRING_FLOAT(Widened<Float8E3M4>),\n",
    ),
}
# The second line of the record's file: after the last one of its table.
FACTS = "    {1, 4, 1, 0x70, 0x0F},\n"
SUM = r"""
#include <cstdint>
#include <cstdio>
#include "reduce/kernels.h"
int main() {
  using namespace jaxring;
  static_assert(ElementBytes(DType::kF8E3M4) == 1);
  const Kernels* kernels = FindKernels(DType::kF8E3M4, ReduceOp::kSum);
  uint8_t every[256], other[256], sum[256];
  for (int i = 0; i < 256; ++i) every[i] = i, other[i] = i + 37;
  void* into[] = {sum};
  const void* from[] = {every, other};
  kernels->fold_many(into, 1, from, 2, 256, 0, false);
  for (uint8_t value : sum) printf("%d\n", value);
}
"""
USE = """
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.tuner import choose

assert choose("all_reduce", range(4), range(4), 1 << 20, "float8_e3m4").algorithm
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
total = jax.jit(jax.shard_map(lambda x: jaxring.all_reduce(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
traced = total.trace(jnp.zeros(4, jnp.float8_e3m4))
assert "float8_e3m4" in traced.lower().as_text()
try:
    traced.lower(lowering_platforms=("cuda",))
except TypeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the sources with one more dtype."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("jaxring", "ffi"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "tests", "cuda"))
    shutil.copytree(ROOT / "jaxring" / "runtime" / "cuda", folder / "jaxring" / "runtime" / "cuda", dirs_exist_ok=True)
    native = pathlib.Path(importlib.util.find_spec("jaxring._native").origin)
    if not (folder / "jaxring" / native.name).exists():
        shutil.copy(native, folder / "jaxring")
    for name, (last, row) in ROWS.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(last) == 1, name
        text = text.replace(last, last + row)
        if name.endswith("dtypes.h"):
            table, rest = text.split("inline constexpr DTypeFacts kDTypes[] = {\n")
            rows, end = rest.split("\n};\n", 1)
            text = f"{table}inline constexpr DTypeFacts kDTypes[] = {{\n{rows}\n{FACTS}}};\n{end}"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_four_files_add_a_dtype_that_is_summed(tree: pathlib.Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tree / "sum.cc").write_text(SUM)
    flags = {"avx2": "-mavx2 -mfma -mf16c", "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c"}
    objects = []
    for source in [*sorted((tree / "ffi" / "reduce").glob("*.cc")), tree / "sum.cc"]:
        extra = next((text.split() for name, text in flags.items() if name in source.name), [])
        if extra and os.uname().machine != "x86_64":
            continue
        objects.append(tree / f"{source.stem}.o")
        command = [compiler, "-std=c++20", "-I", tree / "ffi", *extra, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    subprocess.run([compiler, *objects, "-o", tree / "sum"], check=True)
    printed = subprocess.run([tree / "sum"], check=True, capture_output=True, text=True).stdout
    found = np.array(printed.split(), np.uint8).view(ml_dtypes.float8_e3m4).astype(np.float32)
    every = np.arange(256, dtype=np.uint8)
    operands = [codes.view(ml_dtypes.float8_e3m4).astype(np.float32) for codes in (every, every + np.uint8(37))]
    with np.errstate(all="ignore"):
        expected = sum(operands).astype(ml_dtypes.float8_e3m4).astype(np.float32)
    assert np.isfinite(expected).sum() > 150
    np.testing.assert_array_equal(found, expected)


def test_it_is_planned_and_refused_on_gpus(tree: pathlib.Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_NUM_CPU_DEVICES": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", USE], cwd=tree, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (
        "jaxring.all_reduce: float8_e3m4 is reduced on CPUs only; convert it to float32 first, for example.\n"
    )
