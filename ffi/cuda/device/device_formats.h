// Converts narrow floats to float32 and back, one element at a time: 8-bit formats everywhere, 16-bit ones where there
// is no instruction for them (the shim). Results are rounded as in ffi/reduce/formats.h.
#pragma once

#include "cuda/device/device.h"

namespace jaxring::cuda {

// A format of kBits: a sign, an exponent and kMantissa bits. Where kFiniteOnly, the code of all ones is NaN, no code is
// infinity and overflow gives NaN; otherwise the highest exponent is for infinity and NaN as in IEEE 754.
template <int kBits, int kMantissa, bool kFiniteOnly>
struct SmallFloat {
  static constexpr int kExponent = kBits - 1 - kMantissa;
  static constexpr int kShift = 23 - kMantissa;  // from this mantissa to float32's
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;  // as float32
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kOverflow = kFiniteOnly ? kMagnitude : ((1u << kExponent) - 1) << kMantissa;
  static constexpr uint32_t kNan = kFiniteOnly ? kMagnitude : kOverflow | 1u << (kMantissa - 1);

  JAXRING_DEVICE static float Unpack(uint32_t code) {
    const uint32_t sign = (code >> (kBits - 1) & 1u) << 31;
    const uint32_t magnitude = (code & kMagnitude) << kShift;
    uint32_t bits = magnitude + kRebias;
    if constexpr (kFiniteOnly) {
      bits = magnitude == kMagnitude << kShift ? 0x7fc00000u : bits;
    } else {
      bits = magnitude >= kOverflow << kShift ? magnitude + 2 * kRebias : bits;
    }
    // A subnormal's value is the difference that its bits make when they are added to the least normal number.
    const float subnormal = AsFloat(magnitude + kLeastNormal) - AsFloat(kLeastNormal);
    return AsFloat((magnitude < 1u << 23 ? AsBits(subnormal) : bits) | sign);
  }

  JAXRING_DEVICE static uint32_t Pack(float value) {
    const uint32_t bits = AsBits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t odd = magnitude >> kShift & 1u;
    // Below the least normal number this wraps around, and `subnormal` is chosen instead.
    uint32_t normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    normal = normal > kOverflow ? kOverflow : normal;
    // kCounter's last place is worth the least subnormal, so the sum's mantissa is the value as a rounded multiple of
    // it.
    constexpr uint32_t kCounter = static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
    const uint32_t subnormal = AsBits(AsFloat(magnitude) + AsFloat(kCounter)) - kCounter;
    uint32_t code = magnitude < kLeastNormal ? subnormal : normal;
    code = magnitude > 0x7f800000u ? kNan : code;
    return code | (bits >> 31) << (kBits - 1);
  }
};

using Float8E5M2 = SmallFloat<8, 2, false>;
using Float8E4M3FN = SmallFloat<8, 3, true>;

#if !defined(__CUDACC__)
using Float16 = SmallFloat<16, 10, false>;

inline void UnpackHalves(uint32_t word, float* low, float* high) {
  *low = Float16::Unpack(word & 0xffffu);
  *high = Float16::Unpack(word >> 16);
}
inline uint32_t PackHalves(float low, float high) { return Float16::Pack(low) | Float16::Pack(high) << 16; }

inline uint32_t PackBfloat16(float value) {
  const uint32_t bits = AsBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits | 0x400000u) >> 16;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline uint32_t PackBfloat16s(float low, float high) { return PackBfloat16(low) | PackBfloat16(high) << 16; }
#endif

}  // namespace jaxring::cuda
