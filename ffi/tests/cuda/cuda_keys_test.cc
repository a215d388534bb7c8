// The map from floats to integers of the same order: all float16 and bfloat16 values, and for float32 and float64 the
// special values and their neighbours.
#include <cmath>
#include <limits>

#include "cuda/experimental/keys.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

using cuda::Arithmetic;
using cuda::Vec;

Arithmetic How(DType dtype, ReduceOp op) { return {dtype, cuda::CodeOf(dtype, op), 0}; }

int32_t KeyOf16(DType dtype, ReduceOp op, uint32_t code, uint32_t* back) {
  const Arithmetic how = How(dtype, op);
  Vec v[2];
  cuda::Widen<2>(how, Vec{{code, 0, 0, 0}}, v);
  cuda::ToKeys(how, v);
  const auto key = static_cast<int32_t>(v[0].w[0]);
  cuda::FromKeys(how, v);
  *back = cuda::Narrow<2>(how, v).w[0];
  return key;
}

void CheckEvery16(DType dtype, ReduceOp op) {
  const uint32_t infinity = FormatOf(dtype).overflow;
  int64_t before = std::numeric_limits<int64_t>::min();
  uint32_t back = 0;
  const auto next = [&](uint32_t code) {
    const int32_t key = KeyOf16(dtype, op, code, &back);
    CHECK(key > before);
    CHECK_EQ(back, code);
    before = key;
  };
  for (uint32_t magnitude = infinity + 1; magnitude-- > 0;) next(magnitude | 0x8000u);
  for (uint32_t magnitude = 0; magnitude <= infinity; ++magnitude) next(magnitude);
  const int32_t least = KeyOf16(dtype, op, infinity | 0x8000u, &back), most = KeyOf16(dtype, op, infinity, &back);
  for (uint32_t magnitude = infinity + 1; magnitude < 0x8000u; ++magnitude) {
    for (uint32_t code : {magnitude, magnitude | 0x8000u}) {
      const int32_t key = KeyOf16(dtype, op, code, &back);
      CHECK(op == ReduceOp::kMin ? key < least : key > most);
      CHECK((back & 0x7fffu) > infinity);
    }
  }
}

// The minimum or maximum of two keys, mapped back, is that of the two floats.
template <class Float, class Word>
void CheckPairs(DType dtype, ReduceOp op) {
  using Limits = std::numeric_limits<Float>;
  constexpr DType kKey = sizeof(Word) == 4 ? DType::kInt32 : DType::kInt64;
  std::vector<Float> values = {0,
                               1,
                               Limits::min(),
                               Limits::denorm_min(),
                               Limits::max(),
                               Limits::infinity(),
                               Limits::quiet_NaN(),
                               Limits::signaling_NaN()};
  for (Float next : std::vector<Float>(values)) values.push_back(std::copysign(next, Float{-1}));
  const Arithmetic how = How(dtype, op);
  CHECK(cuda::ArithmeticOf(how, cuda::SwitchFormOf(dtype, op, false)).dtype == kKey);
  for (Float a : values) {
    for (Float b : values) {
      Vec x[1] = {}, y[1] = {};
      std::memcpy(x, &a, sizeof a);
      std::memcpy(y, &b, sizeof b);
      cuda::ToKeys(how, x);
      cuda::ToKeys(how, y);
      cuda::Fold<1>(How(kKey, op), x, y);
      cuda::FromKeys(how, x);
      char want[8];
      Write(dtype, want, Combine(dtype, op, {a}, {b}));
      CHECK(SameElement(dtype, reinterpret_cast<const char*>(x), want));
    }
  }
}

CASE("keys are in order and come back") {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    CheckEvery16(DType::kF16, op);
    CheckEvery16(DType::kBF16, op);
    CheckPairs<float, uint32_t>(DType::kF32, op);
    CheckPairs<double, uint64_t>(DType::kF64, op);
  }
}

}  // namespace
}  // namespace jaxring::test
