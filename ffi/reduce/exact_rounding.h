// Exact additions of vectors, and rounding to odd. Per instruction set: see vectors.h.
//
// A number that is rounded to odd has its last bit set if it is not exact. It can then be rounded to a narrower format
// as if from the exact number (S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved
// algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008).
#pragma once

#include "reduce/codecs.h"

namespace jaxring::JAXRING_ISA {
namespace {

using Wide = Vector<double>;
using WideBits = Vector<int64_t>;
typedef float HalfFloat __attribute__((vector_size(JAXRING_VECTOR_BYTES / 2)));

template <size_t... kLane>
JAXRING_INLINE void WidenLanes(Float value, Wide& low, Wide& high, std::index_sequence<kLane...>) {
  low = __builtin_convertvector(__builtin_shufflevector(value, value, kLane...), Wide);
  high = __builtin_convertvector(__builtin_shufflevector(value, value, (kLane + sizeof...(kLane))...), Wide);
}

// The first and the second half of the lanes.
JAXRING_INLINE void Widen(Float value, Wide& low, Wide& high) {
  WidenLanes(value, low, high, std::make_index_sequence<kLanes<double>>());
}

template <size_t... kLane>
JAXRING_INLINE Float NarrowLanes(Wide low, Wide high, std::index_sequence<kLane...>) {
  const HalfFloat a = __builtin_convertvector(low, HalfFloat), b = __builtin_convertvector(high, HalfFloat);
  return __builtin_shufflevector(a, b, kLane...);
}

// Rounded to nearest even.
JAXRING_INLINE Float Narrow(Wide low, Wide high) {
  return NarrowLanes(low, high, std::make_index_sequence<kLanes<float>>());
}

JAXRING_INLINE bool AnyLane(WideBits mask) {
#if !defined(__x86_64__)
  return (mask[0] | mask[1]) != 0;
#elif JAXRING_VECTOR_BYTES == 16
  return _mm_movemask_epi8((__m128i)mask) != 0;
#elif JAXRING_VECTOR_BYTES == 32
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#endif
}

// a + b rounded to nearest; `rest` is what that rounds away, exactly.
template <class T>
JAXRING_INLINE Vector<T> TwoSum(Vector<T> a, Vector<T> b, Vector<T>& rest) {
  const Vector<T> sum = a + b, added = sum - a;
  rest = (a - (sum - added)) + (b - added);
  return sum;
}

// Rounds `value` + `rest` to odd, where `value` is that number rounded to nearest. Only the sign of `rest` counts.
template <class T>
JAXRING_INLINE Vector<T> ToOdd(Vector<T> value, Vector<T> rest) {
  using Int = typename IntOf<T>::Type;
  using Bits = Vector<Int>;
  const Bits bits = (Bits)value;
  const Bits step = (bits ^ (Bits)rest) < 0 ? Broadcast<Int>(-1) : Broadcast<Int>(1);
  const Bits even = (bits & 1) - 1;
  return (Vector<T>)(bits + (step & even & ((rest < T(0)) | (rest > T(0)))));
}

// The sum of a pair from AddInPairs. If there is no rest the first sum stays, since -0 + 0 would be +0.
template <class T>
JAXRING_INLINE Vector<T> PairToNearest(Vector<T> sum, Vector<T> rest) {
  return rest == T(0) ? sum : sum + rest;
}

template <class T>
JAXRING_INLINE Vector<T> PairToOdd(Vector<T> sum, Vector<T> rest) {
  Vector<T> rounded_away;
  const Vector<T> rounded = TwoSum<T>(sum, rest, rounded_away);
  return rest == T(0) ? sum : ToOdd<T>(rounded, rounded_away);
}

// `value` / `divisor` rounded to odd; 0: no division. `value` is a double that was rounded to odd from a sum of floats,
// so the quotient and all products here are in the range of normal numbers; `divisor` is less than 2^24.
JAXRING_INLINE Wide DivideToOdd(Wide value, uint64_t divisor) {
  if (divisor == 0) return value;
  const Wide by = Broadcast<double>(static_cast<double>(divisor));
  if ((divisor & (divisor - 1)) == 0) return value * (1.0 / by);
  const Wide quotient = value / by;
  // Both parts of the quotient have few enough bits that their products are exact.
  const Wide high = (Wide)((WideBits)quotient & Broadcast<int64_t>(-(int64_t{1} << 27))), low = quotient - high;
  return ToOdd<double>(quotient, (value - high * by) - low * by);
}

// Doubles as floats, rounded to odd.
JAXRING_INLINE Float NarrowToOdd(Wide low, Wide high) {
  const Float value = Narrow(low, high);
  Wide back_low, back_high;
  Widen(value, back_low, back_high);
  // In which direction each is off: infinities and NaN in none.
  const Wide up = Broadcast<double>(1), down = Broadcast<double>(-1);
  return ToOdd<float>(value, Narrow(low > back_low   ? up
                                    : low < back_low ? down
                                                     : Wide{},
                                    high > back_high   ? up
                                    : high < back_high ? down
                                                       : Wide{}));
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
