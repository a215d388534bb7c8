// Converts narrow floats within 32-bit words to float32 and back. Per instruction set: see vectors.h.
//
// A format has kPerWord elements in each 32-bit lane. Unpack<k> gives the k-th element of each lane as float32,
// exactly; Pack<k> rounds to nearest even, once, and returns words that are zero outside the k-th element. All
// arithmetic on floats here is on normal numbers, so a caller's flush-to-zero mode does not change results.
#pragma once

#include "reduce/vectors.h"

namespace jaxring::JAXRING_ISA {
namespace {

using Word = Vector<int32_t>;
using Bits = Vector<uint32_t>;
using Float = Vector<float>;

constexpr uint32_t kSignBit = 0x80000000u;
constexpr int32_t kInfinityBits = 0x7f800000;

// Shifts left by a signed count.
template <int kCount>
JAXRING_INLINE Bits Shift(Bits bits) {
  if constexpr (kCount >= 0) {
    return bits << kCount;
  } else {
    return bits >> -kCount;
  }
}

struct BFloat16 {
  static constexpr int kPerWord = 2;

  template <int kPlace>
  JAXRING_INLINE static Float Unpack(Bits words) {
    return (Float)(kPlace == 0 ? words << 16 : words & 0xffff0000u);
  }

  template <int kPlace>
  JAXRING_INLINE static Bits Pack(Float value) {
    Bits bits = (Bits)value;
    Bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    Word nan = (Word)(bits & ~kSignBit) > kInfinityBits;
    rounded = nan ? (bits | 0x400000u) : rounded;
    return kPlace == 0 ? rounded >> 16 : rounded & 0xffff0000u;
  }
};

// A format of kBits: a sign, an exponent and kMantissa bits. Where kFiniteOnly, the code of all ones is NaN, no code is
// infinity and overflow gives NaN; otherwise the highest exponent is for infinity and NaN as in IEEE 754.
template <int kBits, int kMantissa, bool kFiniteOnly>
struct SmallFloat {
  static constexpr int kPerWord = 32 / kBits;
  static constexpr int kExponent = kBits - 1 - kMantissa;
  static constexpr int kShift = 23 - kMantissa;  // from this mantissa to float32's
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int32_t kRebias = (127 - kBias) << 23;
  static constexpr int32_t kLeastNormal = (128 - kBias) << 23;  // as float32
  static constexpr int32_t kMagnitude = (1 << (kBits - 1)) - 1;
  static constexpr int32_t kOverflow = kFiniteOnly ? kMagnitude : ((1 << kExponent) - 1) << kMantissa;
  static constexpr int32_t kNan = kFiniteOnly ? kMagnitude : kOverflow | 1 << (kMantissa - 1);

  template <int kPlace>
  JAXRING_INLINE static Float Unpack(Bits words) {
    Bits sign = Shift<32 - (kPlace + 1) * kBits>(words) & kSignBit;
    Word magnitude = (Word)(Shift<kShift - kPlace * kBits>(words) & uint32_t(kMagnitude << kShift));
    Word normal = magnitude + kRebias;
    if constexpr (kFiniteOnly) {
      normal = magnitude == (kMagnitude << kShift) ? Broadcast<int32_t>(0x7fc00000) : normal;
    } else {
      normal = magnitude >= (kOverflow << kShift) ? magnitude + 2 * kRebias : normal;
    }
    // A subnormal's value is the difference that its bits make when they are added to the least normal number.
    Float subnormal = (Float)(magnitude + kLeastNormal) - (Float)Broadcast<int32_t>(kLeastNormal);
    Word chosen = magnitude < (1 << 23) ? (Word)subnormal : normal;
    return (Float)((Bits)chosen | sign);
  }

  template <int kPlace>
  JAXRING_INLINE static Bits Pack(Float value) {
    Bits sign = (Bits)value & kSignBit;
    Word magnitude = (Word)((Bits)value & ~kSignBit);
    Word odd = (magnitude >> kShift) & 1;
    Word normal = (magnitude - kRebias + ((1 << (kShift - 1)) - 1) + odd) >> kShift;
    normal = normal > kOverflow ? Broadcast<int32_t>(kOverflow) : normal;
    // counter's last place is worth the least subnormal, so the sum's mantissa is the value as a rounded multiple of
    // it.
    Word counter = Broadcast<int32_t>((127 + 23 + 1 - kBias - kMantissa) << 23);
    Word subnormal = (Word)((Float)magnitude + (Float)counter) - counter;
    Word chosen = magnitude < kLeastNormal ? subnormal : normal;
    chosen = magnitude > kInfinityBits ? Broadcast<int32_t>(kNan) : chosen;
    return Shift<kPlace * kBits>((Bits)chosen) | Shift<(kPlace + 1) * kBits - 32>(sign);
  }
};

using Float16 = SmallFloat<16, 10, false>;
using Float8E5M2 = SmallFloat<8, 2, false>;
using Float8E4M3FN = SmallFloat<8, 3, true>;

}  // namespace
}  // namespace jaxring::JAXRING_ISA
