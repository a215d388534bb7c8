"""The step record and the enumerations are the same in Python and in C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from jaxring.plan import dtypes
from jaxring.plan.schedule import MEMORY_PEER, STEP_DTYPE, Buffer, Flag, Kind

FFI = Path(__file__).resolve().parents[2] / "ffi"

PROGRAM = r"""
#include <cstddef>
#include <cstdio>
#include "plan/schedule.h"
#include "reduce/kernels.h"
using namespace jaxring;
#define FIELD(name) printf("field " #name " %zu %zu\n", offsetof(Step, name), sizeof(Step::name));
#define VALUE(kind, name, value) printf(kind " " name " %d\n", static_cast<int>(value));
int main() {
  FIELD(kind) FIELD(flags) FIELD(src_buffer) FIELD(dst_buffer) FIELD(src_chunk) FIELD(dst_chunk)
  FIELD(recv_begin) FIELD(send_begin) FIELD(recv_count) FIELD(send_count)
  VALUE("size", "Step", sizeof(Step)) VALUE("size", "memory", Peer::kMemory)
  VALUE("buffer", "NONE", Buffer::kNone) VALUE("buffer", "INPUT", Buffer::kInput)
  VALUE("buffer", "OUTPUT", Buffer::kOutput) VALUE("buffer", "SCRATCH", Buffer::kScratch)
  VALUE("kind", "MOVE", StepKind::kMove) VALUE("kind", "REDUCE", StepKind::kReduce)
  VALUE("kind", "GATHER", StepKind::kGather) VALUE("kind", "SPREAD", StepKind::kSpread)
  VALUE("flag", "FINAL", kFinal) VALUE("flag", "RECV_PARTIAL", kRecvPartial)
  VALUE("flag", "SEND_PARTIAL", kSendPartial) VALUE("flag", "ZERO", kZero) VALUE("flag", "EPILOGUE", kEpilogue)
  VALUE("dtype", "bool", DType::kBool) VALUE("dtype", "int8", DType::kInt8) VALUE("dtype", "int16", DType::kInt16)
  VALUE("dtype", "int32", DType::kInt32) VALUE("dtype", "int64", DType::kInt64)
  VALUE("dtype", "uint8", DType::kUInt8) VALUE("dtype", "uint16", DType::kUInt16)
  VALUE("dtype", "uint32", DType::kUInt32) VALUE("dtype", "uint64", DType::kUInt64)
  VALUE("dtype", "float8_e4m3fn", DType::kF8E4M3FN) VALUE("dtype", "float8_e5m2", DType::kF8E5M2)
  VALUE("dtype", "float16", DType::kF16) VALUE("dtype", "bfloat16", DType::kBF16)
  VALUE("dtype", "float32", DType::kF32) VALUE("dtype", "float64", DType::kF64)
  VALUE("dtype", "complex64", DType::kC64) VALUE("dtype", "complex128", DType::kC128)
  VALUE("op", "sum", ReduceOp::kSum) VALUE("op", "prod", ReduceOp::kProd) VALUE("op", "min", ReduceOp::kMin)
  VALUE("op", "max", ReduceOp::kMax) VALUE("op", "and", ReduceOp::kAnd) VALUE("op", "or", ReduceOp::kOr)
  VALUE("op", "xor", ReduceOp::kXor)
  for (int i = 0; i < kDTypeCount; ++i) printf("facts %d %d %d\n", i, kDTypes[i].bytes, kDTypes[i].accumulator_bytes);
  VALUE("size", "dtypes", kDTypeCount) VALUE("size", "ops", kReduceOpCount)
}
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[int, ...]]]:
    """What the compiler says: per kind, name to numbers."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("record")
    (folder / "print.cc").write_text(PROGRAM)
    binary = folder / "print"
    command = [compiler, "-std=c++20", "-Wall", "-Werror", "-I", FFI, folder / "print.cc", "-o", binary]
    subprocess.run(command, check=True)
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, name, *numbers = line.split()
        result.setdefault(kind, {})[name] = tuple(map(int, numbers))
    return result


def test_the_record_is_the_same(native: dict[str, dict[str, tuple[int, ...]]]) -> None:
    fields = {name: (offset, dtype.itemsize) for name, (dtype, offset) in STEP_DTYPE.fields.items()}
    assert fields == native["field"]
    assert native["size"]["Step"] == (STEP_DTYPE.itemsize,)
    assert native["size"]["memory"] == (MEMORY_PEER,)


def test_the_enumerations_are_the_same(native: dict[str, dict[str, tuple[int, ...]]]) -> None:
    for kind, enumeration in (("buffer", Buffer), ("kind", Kind)):
        assert {member.name: (member.value,) for member in enumeration} == native[kind]
    assert {flag.name: (flag.value,) for flag in Flag} == native["flag"]
    assert {name: (code,) for name, code in dtypes.DTYPE_CODES.items()} == native["dtype"]
    assert {name: (code,) for name, code in dtypes.REDUCE_OPS.items() if name != "mean"} == native["op"]
    facts = [(each.bytes, each.accumulator_bytes) for each in dtypes.DTYPES.values()]
    assert {str(code): numbers for code, numbers in enumerate(facts)} == native["facts"]
    assert native["size"]["dtypes"] == (len(dtypes.DTYPES),)
    assert native["size"]["ops"] == (len(native["op"]),)
