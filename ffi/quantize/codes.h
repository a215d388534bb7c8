// The codes of one element in each format. Per instruction set: see reduce/vectors.h.
//
// A format has kBits per code. Code() turns scaled values into codes in the low bits of each lane, Value() does the
// reverse. A block with NaN or infinity has a smaller limit, kMarkedLimit, and three codes beyond it that say which.
#pragma once

#include "quantize/quantize.h"
#include "reduce/formats.h"

namespace jaxring::JAXRING_ISA {
namespace {

constexpr float kTwo23 = 8388608.0f;

// Rounds to the nearest integer, ties to even, for magnitudes below 2^22. The sum's last place is worth 1.
JAXRING_INLINE Word RoundToInt(Float value) {
  const Float magic = Broadcast(1.5f * kTwo23);
  return (Word)(value + magic) - (Word)magic;
}

// The low 22 bits of that integer, which those of the sum are already.
JAXRING_INLINE Bits RoundToLowBits(Float value) { return (Bits)(value + 1.5f * kTwo23); }

// Uniform on (-1/2, 1/2), from 16 bits: value + Centered(bits), rounded to nearest, is value rounded at random.
JAXRING_INLINE Float Centered(Bits bits) {
  return (__builtin_convertvector((Word)bits, Float) + 0.5f) * (1.0f / 65536) - 0.5f;
}

template <int kBitsPerCode>
struct IntCode {
  static constexpr bool kScaled = true;
  static constexpr int kBits = kBitsPerCode;
  static constexpr int kLargest = (1 << (kBits - 1)) - 1;
  static constexpr float kLimit = kLargest, kMarkedLimit = kLargest - 1;
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  static constexpr uint32_t kInfinity = kLargest, kMinusInfinity = uint32_t(-kLargest) & kMask, kNan = kLargest + 1;

  template <bool kStochastic>
  JAXRING_INLINE static Bits Code(Float value, Bits random, float limit) {
    // To nearest, no value is so far beyond the limit that its code would be.
    if constexpr (!kStochastic) return RoundToLowBits(value) & kMask;
    value = value + Centered(random);
    Word code = RoundToInt(value);
    const Word most = Broadcast(static_cast<int32_t>(limit));
    code = code > most ? most : code;
    code = code < -most ? -most : code;
    return (Bits)code & kMask;
  }

  template <int kPlace>
  JAXRING_INLINE static Float Value(Bits words) {
    return __builtin_convertvector((Word)(words << (32 - kBits * (kPlace + 1))) >> (32 - kBits), Float);
  }
};

struct F8E4M3Code {
  static constexpr bool kScaled = true;
  static constexpr int kBits = 8;
  static constexpr float kLimit = 448, kMarkedLimit = 416;
  static constexpr uint32_t kInfinity = 0x7e, kMinusInfinity = 0xfe, kNan = 0x7f;
  static constexpr int kDropped = 20;  // bits of float32's mantissa that the format lacks
  static constexpr float kLeastSubnormal = 1 / 512.0f;

  template <bool kStochastic>
  JAXRING_INLINE static Bits Code(Float value, Bits random, float limit) {
    if constexpr (kStochastic) {
      // Normal numbers carry into the bits that stay; subnormal ones are multiples of the least.
      const Float normal = (Float)((((Bits)value + (random << (kDropped - 16))) >> kDropped) << kDropped);
      const Word multiple = RoundToInt(value / kLeastSubnormal + Centered(random));
      const Float subnormal = __builtin_convertvector(multiple, Float) * kLeastSubnormal;
      value = (Word)((Bits)value & ~kSignBit) < Float8E4M3FN::kLeastNormal ? subnormal : normal;
    }
    value = value > limit ? Broadcast(limit) : value;
    value = value < -limit ? Broadcast(-limit) : value;
    return Float8E4M3FN::Pack<0>(value);
  }

  template <int kPlace>
  JAXRING_INLINE static Float Value(Bits words) {
    return Float8E4M3FN::Unpack<kPlace>(words);
  }
};

struct BF16Code {
  static constexpr bool kScaled = false;
  static constexpr int kBits = 16;

  template <bool kStochastic>
  JAXRING_INLINE static Bits Code(Float value, Bits random, float) {
    if constexpr (kStochastic) {
      const Bits bits = (Bits)value;
      const Bits carried = (bits + random) & 0xffff0000u;
      value = (Word)(bits & ~kSignBit) >= kInfinityBits ? value : (Float)carried;
    }
    return BFloat16::Pack<0>(value);
  }

  template <int kPlace>
  JAXRING_INLINE static Float Value(Bits words) {
    return BFloat16::Unpack<kPlace>(words);
  }
};

}  // namespace
}  // namespace jaxring::JAXRING_ISA
