// Exact sums of floats: an integer in units of the format's least subnormal number, wide enough for every value.
//
// After R. M. Neal, "Fast exact summation using small and large superaccumulators" (arXiv:1505.05571): digits of 32
// bits in 64-bit integers, so that carries wait. Integer addition is associative, so the order of the additions does
// not matter. All arithmetic is on integers: the processor's floating-point mode plays no part.
//
// Files that are compiled once for each instruction set include this, so everything is in an unnamed namespace, as in
// vectors.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring {
namespace {

// The formats, by their elements.
struct Float16Format {
  using Bits = uint16_t;
  static constexpr int kMantissa = 10, kExponent = 5;
};
struct Bfloat16Format {
  using Bits = uint16_t;
  static constexpr int kMantissa = 7, kExponent = 8;
};
struct Float32Format {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kExponent = 8;
};
struct Float64Format {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kExponent = 11;
};

// What a sum is that is no finite number other than zero.
enum class Special : uint8_t { kNone, kPositiveZero, kNegativeZero, kPositiveInfinity, kNegativeInfinity, kNan };

inline uint64_t Code(Special special, int mantissa_bits, int exponent_bits) {
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t sign = uint64_t{1} << (mantissa_bits + exponent_bits);
  switch (special) {
    case Special::kNegativeZero:
      return sign;
    case Special::kPositiveInfinity:
      return infinity;
    case Special::kNegativeInfinity:
      return infinity | sign;
    case Special::kNan:
      return infinity | uint64_t{1} << (mantissa_bits - 1);
    default:
      return 0;
  }
}

// A number other than zero: top * 2^(exponent - 63), whose leading bit is set, and some more if `more`.
struct Magnitude {
  bool negative;
  uint64_t top;
  int exponent;
  bool more;
};

// The bits of a magnitude in an IEEE 754 format, rounded to nearest even. The sign is not in them. The magnitude is a
// multiple of the format's least subnormal number or more.
inline uint64_t RoundToNearest(const Magnitude& value, int mantissa_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  if (value.exponent > bias) return infinity;
  const int place = value.exponent > 1 - bias ? value.exponent : 1 - bias;  // of the leading bit of a normal number
  const int drop = 63 - mantissa_bits + place - value.exponent;             // bits of `top` that are rounded away
  const uint64_t kept = value.top >> drop, half = uint64_t{1} << (drop - 1), rest = value.top & (2 * half - 1);
  const bool up = rest > half || (rest == half && (value.more || (kept & 1)));
  // A carry out of the mantissa makes the next exponent, and in the end infinity.
  return (static_cast<uint64_t>(place + bias - 1) << mantissa_bits) + kept + up;
}

template <class Format>
class FixedPoint {
 public:
  using Bits = typename Format::Bits;
  static constexpr int kMantissa = Format::kMantissa, kExponent = Format::kExponent;
  static constexpr int kLowest = 3 - (1 << (kExponent - 1)) - kMantissa - 1;  // the exponent of the unit
  // The largest number has 2^kExponent + kMantissa - 2 bits; 63 more are for the number of terms, one for the sign.
  static constexpr int kBits = (1 << kExponent) + kMantissa - 2 + 63 + 1;
  static constexpr int kDigits = (kBits + 31) / 32;
  // Terms that may be added before Carry: each changes a digit by less than 2^33.
  static constexpr uint64_t kMostTerms = uint64_t{1} << 28;

  void Add(Bits bits) {
    constexpr uint64_t kFraction = (uint64_t{1} << kMantissa) - 1;
    constexpr int kTop = (1 << kExponent) - 1;
    const bool negative = bits >> (kMantissa + kExponent);
    const int exponent = static_cast<int>(bits >> kMantissa) & kTop;
    uint64_t mantissa = bits & kFraction;
    if (exponent == kTop) {
      (mantissa ? nan_ : negative ? minus_infinity_ : plus_infinity_) = true;
      return;
    }
    not_negative_zero_ |= !negative | (exponent != 0) | (mantissa != 0);
    if (exponent) mantissa |= uint64_t{1} << kMantissa;
    const int place = exponent ? exponent - 1 : 0;
    int64_t* digit = digits_ + place / 32;
    const int shift = place % 32;
    // Two halves, whose shifted values fit 64 bits.
    const uint64_t low = (mantissa & 0xffffffff) << shift;
    const int64_t sign = negative ? -1 : 1;
    digit[0] += sign * static_cast<int64_t>(low & 0xffffffff);
    if constexpr (kMantissa < 32) {
      digit[1] += sign * static_cast<int64_t>(low >> 32);
    } else {
      const uint64_t high = (mantissa >> 32) << shift;
      digit[1] += sign * static_cast<int64_t>((low >> 32) + (high & 0xffffffff));
      digit[2] += sign * static_cast<int64_t>(high >> 32);
    }
  }

  // Brings all digits but the last, which has the sign, to [0, 2^32).
  void Carry() {
    int64_t carry = 0;
    for (int i = 0; i < kDigits - 1; ++i) {
      const int64_t digit = digits_[i] + carry;
      digits_[i] = digit & 0xffffffff;
      carry = digit >> 32;
    }
    digits_[kDigits - 1] += carry;
  }

  // Adds another process's sum, or gives this one to others: in two's complement, cut into digits of `width` bits, as
  // many as cover it, each `stride` words after the one before. Then follow two words with two counts each: of sums
  // that have NaN and positive infinity, negative infinity and anything but -0. Up to 2^(32 - width) sums that were
  // given may be added word by word, and then taken at once.
  static constexpr int Words(int width) { return (32 * kDigits + width - 1) / width + 2; }
  void Give(int width, uint32_t* words, size_t stride) {
    Carry();
    const uint64_t beyond = digits_[kDigits - 1] < 0 ? 0xffffffff : 0, mask = (uint64_t{1} << width) - 1;
    auto limb = [&](int i) { return i < kDigits ? static_cast<uint64_t>(digits_[i]) & 0xffffffff : beyond; };
    const int count = Words(width) - 2;
    for (int j = 0; j < count; ++j) {
      const int i = j * width / 32, shift = j * width % 32;
      words[j * stride] = static_cast<uint32_t>((limb(i) | limb(i + 1) << 32) >> shift & mask);
    }
    words[count * stride] = nan_ | static_cast<uint32_t>(plus_infinity_) << 16;
    words[(count + 1) * stride] = minus_infinity_ | static_cast<uint32_t>(not_negative_zero_) << 16;
  }
  void Take(int width, const uint32_t* words, size_t stride) {
    const int count = Words(width) - 2;
    for (int j = 0; j < count; ++j) {
      const int i = j * width / 32, shift = j * width % 32;
      const uint64_t digit = static_cast<uint64_t>(words[j * stride]) << shift;
      if (i < kDigits) digits_[i] += static_cast<int64_t>(digit & 0xffffffff);
      if (i + 1 < kDigits) digits_[i + 1] += static_cast<int64_t>(digit >> 32);
    }
    Carry();
    // Modulo 2^(32 kDigits): what the sign extensions carried beyond that does not count.
    digits_[kDigits - 1] = static_cast<int32_t>(static_cast<uint32_t>(digits_[kDigits - 1]));
    const uint32_t first = words[count * stride], second = words[(count + 1) * stride];
    nan_ |= (first & 0xffff) != 0;
    plus_infinity_ |= first >> 16 != 0;
    minus_infinity_ |= (second & 0xffff) != 0;
    not_negative_zero_ |= second >> 16 != 0;
  }

  // The bits of the sum in the format, rounded to nearest even.
  Bits Round() {
    Magnitude sum;
    const Special special = Finish(&sum);
    const bool finite = special == Special::kNone;
    const uint64_t bits = finite ? RoundToNearest(sum, kMantissa, kExponent) : Code(special, kMantissa, kExponent);
    return static_cast<Bits>(bits | static_cast<uint64_t>(finite && sum.negative) << (kMantissa + kExponent));
  }

  // The sum, if it is a finite number other than zero; else says what it is. The sum of no terms is +0. A sum of zero
  // is -0 if all terms are -0. Any NaN, and infinities of both signs, make NaN. The digits do not count any more
  // afterwards.
  Special Finish(Magnitude* sum) {
    if (nan_ || (plus_infinity_ && minus_infinity_)) return Special::kNan;
    if (plus_infinity_) return Special::kPositiveInfinity;
    if (minus_infinity_) return Special::kNegativeInfinity;
    Carry();
    sum->negative = digits_[kDigits - 1] < 0;
    if (sum->negative) {
      for (int64_t& digit : digits_) digit = -digit;
      Carry();
    }
    int last = kDigits - 1;
    while (last >= 0 && digits_[last] == 0) --last;
    if (last < 0) return not_negative_zero_ ? Special::kPositiveZero : Special::kNegativeZero;
    auto digit = [this](int i) { return i < 0 ? uint64_t{0} : static_cast<uint64_t>(digits_[i]); };
    // The last digit holds less than 2^32 too, as long as there were no more than 2^63 terms.
    const int zeros = __builtin_clzll(digit(last)) - 32;
    const uint64_t two = digit(last) << 32 | digit(last - 1);
    sum->top = zeros ? two << zeros | digit(last - 2) >> (32 - zeros) : two;
    sum->more = zeros && (digit(last - 2) << zeros & 0xffffffff);
    if (!zeros) sum->more = digit(last - 2);
    for (int i = last - 3; i >= 0; --i) sum->more |= digits_[i] != 0;
    sum->exponent = kLowest + 32 * last + 31 - zeros;
    return Special::kNone;
  }

 private:
  int64_t digits_[kDigits] = {};
  bool nan_ = false, plus_infinity_ = false, minus_infinity_ = false, not_negative_zero_ = false;
};

// The bits of a sum as a double. Of a narrower format, whose sums are in the range of normal doubles, rounded to odd
// (reduce/exact_rounding.h). Of doubles, rounded to nearest even.
template <class Format>
inline uint64_t TakeDouble(FixedPoint<Format>& total) {
  if constexpr (Format::kMantissa == 52) {
    return total.Round();
  } else {
    Magnitude sum;
    const Special special = total.Finish(&sum);
    if (special != Special::kNone) return Code(special, 52, 11);
    const uint64_t bits = (static_cast<uint64_t>(sum.exponent + 1022) << 52) + (sum.top >> 11);
    const bool inexact = (sum.top & 0x7ff) != 0 || sum.more;
    return bits | inexact | static_cast<uint64_t>(sum.negative) << 63;
  }
}

}  // namespace
}  // namespace jaxring
