// The dtypes of buffers: their numbers, and one record of facts for each. jaxring/plan/dtypes.py has the same ones for
// the planner; tests/plan/test_schedule_record.py holds them equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace jaxring {

enum class DType : uint8_t {
  kBool = 0,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kF8E4M3FN,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

struct DTypeFacts {
  uint8_t bytes;              // of an element in a buffer
  uint8_t accumulator_bytes;  // of an element of a partial result: f8, f16 and bf16 accumulate in f32
  uint8_t parts;              // 2 for complex numbers: the real and the imaginary part
  // Masks for a part's bits: a value is not finite if all bits of `not_finite` are set, and NaN if one of `nan` is set,
  // too. 0: every value is finite. (float8_e4m3fn has no infinity, and one NaN of each sign.)
  uint64_t not_finite = 0;
  uint64_t nan = 0;
};

// In the order of DType.
inline constexpr DTypeFacts kDTypes[] = {
    {1, 1, 1},                                            // bool
    {1, 1, 1},                                            // int8
    {2, 2, 1},                                            // int16
    {4, 4, 1},                                            // int32
    {8, 8, 1},                                            // int64
    {1, 1, 1},                                            // uint8
    {2, 2, 1},                                            // uint16
    {4, 4, 1},                                            // uint32
    {8, 8, 1},                                            // uint64
    {1, 4, 1, 0x7F, 0x7F},                                // float8_e4m3fn
    {1, 4, 1, 0x7C, 0x03},                                // float8_e5m2
    {2, 4, 1, 0x7C00, 0x03FF},                            // float16
    {2, 4, 1, 0x7F80, 0x007F},                            // bfloat16
    {4, 4, 1, 0x7F800000, 0x007FFFFF},                    // float32
    {8, 8, 1, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF},    // float64
    {8, 8, 2, 0x7F800000, 0x007FFFFF},                    // complex64
    {16, 16, 2, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF},  // complex128
};
inline constexpr int kDTypeCount = static_cast<int>(std::size(kDTypes));

constexpr const DTypeFacts& FactsOf(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

// Bytes of an element in a buffer.
constexpr size_t ElementBytes(DType dtype) { return FactsOf(dtype).bytes; }

}  // namespace jaxring
