// Minimum and maximum of floats by integers. A key is a signed integer of a float's width, and keys have the order that
// we promise for floats: -0 below +0, and a NaN wins. So results do not depend on how switches treat NaN and zeros,
// which is not documented, and formats without a floating-point instruction work, too.
#pragma once

#include "cuda/device/reduce.h"
#include "cuda/experimental/multicast_launch.h"

namespace jaxring::cuda {

// Converts a float's bits, except of NaN, to a key and back: negative floats count down from -1.
template <class Word>
JAXRING_DEVICE Word Turn(Word bits) {
  constexpr Word kSign = Word{1} << (8 * sizeof(Word) - 1);
  return bits & kSign ? bits ^ ~kSign : bits;
}
template <class Word>
JAXRING_DEVICE Word KeyOf(Word bits, bool least) {
  constexpr Word kSign = Word{1} << (8 * sizeof(Word) - 1);
  constexpr Word kInfinity = sizeof(Word) == 4 ? Word{0x7f800000u} : static_cast<Word>(0x7ff0000000000000u);
  // Beyond both infinities: depending on its sign a NaN is the least or the greatest key.
  if ((bits & ~kSign) > kInfinity) bits = least ? bits | kSign : bits & ~kSign;
  return Turn(bits);
}

// For accumulators: float64 unchanged, others as float32.
template <int kN>
JAXRING_DEVICE void ToKeys(const Arithmetic& how, Vec (&v)[kN]) {
  const bool least = how.code == Code::kMinF32 || how.code == Code::kMinF64;
  JAXRING_UNROLL
  for (int k = 0; k < kN; ++k) {
    if (how.dtype == DType::kF64) {
      JAXRING_UNROLL
      for (int i = 0; i < 2; ++i) SetWord64(v[k], i, KeyOf(Word64(v[k], i), least));
    } else {
      JAXRING_UNROLL
      for (int i = 0; i < 4; ++i) v[k].w[i] = KeyOf(v[k].w[i], least);
    }
  }
}
template <int kN>
JAXRING_DEVICE void FromKeys(const Arithmetic& how, Vec (&v)[kN]) {
  JAXRING_UNROLL
  for (int k = 0; k < kN; ++k) {
    if (how.dtype == DType::kF64) {
      JAXRING_UNROLL
      for (int i = 0; i < 2; ++i) SetWord64(v[k], i, Turn(Word64(v[k], i)));
    } else {
      JAXRING_UNROLL
      for (int i = 0; i < 4; ++i) v[k].w[i] = Turn(v[k].w[i]);
    }
  }
}

// The operation that the switch performs on elements in that form.
JAXRING_DEVICE Arithmetic ArithmeticOf(const Arithmetic& how, SwitchForm form) {
  if (form.keys) {
    const bool least = how.code == Code::kMinF32 || how.code == Code::kMinF64;
    if (how.dtype == DType::kF64) return {DType::kInt64, least ? Code::kMinS64 : Code::kMaxS64, 0};
    return {DType::kInt32, least ? Code::kMinS32 : Code::kMaxS32, 0};
  }
  return {form.widen > 1 ? DType::kF32 : how.dtype, how.code, how.divisor};
}

}  // namespace jaxring::cuda
