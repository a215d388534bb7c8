// Reference reductions of one element at a time, from the definitions of the formats. They are slow, and share no code
// with ffi/reduce.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "reduce/kernels.h"

namespace jaxring::test {

inline bool IsComplex(DType d) { return d == DType::kC64 || d == DType::kC128; }
inline bool IsDouble(DType d) { return d == DType::kF64 || d == DType::kC128; }
inline bool IsInteger(DType d) { return d <= DType::kUInt64; }
inline bool IsSigned(DType d) { return d >= DType::kInt8 && d <= DType::kInt64; }
inline bool IsNarrow(DType d) { return d >= DType::kF8E4M3FN && d <= DType::kBF16; }

// The values of a narrow float's codes without sign. The last one stands for overflow: the code of infinity (of NaN in
// e4m3fn), with the value that it would have if the exponents continued.
struct Format {
  int bits;
  uint32_t sign, overflow, nan;
  std::vector<double> values;

  Format(int bits, int mantissa, bool finite_only) : bits(bits), sign(1u << (bits - 1)) {
    const int exponent = bits - 1 - mantissa, bias = (1 << (exponent - 1)) - 1;
    overflow = finite_only ? sign - 1 : sign - (1u << mantissa);
    nan = sign - 1;
    for (uint32_t code = 0; code <= overflow; ++code) {
      const int e = code >> mantissa, m = code & ((1 << mantissa) - 1);
      values.push_back(e ? std::ldexp((1 << mantissa) + m, e - bias - mantissa) : std::ldexp(m, 1 - bias - mantissa));
    }
  }

  double Decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign - 1);
    double value = magnitude < overflow ? values[magnitude] : std::numeric_limits<double>::quiet_NaN();
    if (magnitude == overflow && overflow != nan) value = std::numeric_limits<double>::infinity();
    return code & sign ? -value : value;
  }

  uint32_t Encode(float value) const {
    if (std::isnan(value)) return nan;
    const double magnitude = std::fabs(static_cast<double>(value));
    uint32_t code = overflow;
    if (magnitude < values.back()) {
      const uint32_t above = std::upper_bound(values.begin(), values.end(), magnitude) - values.begin();
      const double down = magnitude - values[above - 1], up = values[above] - magnitude;
      code = down < up || (down == up && above % 2) ? above - 1 : above;
    }
    return std::signbit(value) ? code | sign : code;
  }
};

inline const Format& FormatOf(DType d) {
  static const std::map<DType, Format> formats = {{DType::kF8E4M3FN, {8, 3, true}},
                                                  {DType::kF8E5M2, {8, 2, false}},
                                                  {DType::kF16, {16, 10, false}},
                                                  {DType::kBF16, {16, 7, false}}};
  return formats.at(d);
}

// An accumulator: integers in `bits`, sign-extended if signed; floats in re and im, exactly.
struct Value {
  double re = 0, im = 0;
  uint64_t bits = 0;
};

template <class T>
T Get(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void Put(char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline Value Read(DType d, const char* from) {
  Value value;
  const size_t bytes = ElementBytes(d);
  if (IsInteger(d) || IsNarrow(d)) {
    std::memcpy(&value.bits, from, bytes);
    const int unused = 64 - 8 * static_cast<int>(bytes);
    if (IsSigned(d)) value.bits = static_cast<uint64_t>(static_cast<int64_t>(value.bits << unused) >> unused);
    if (IsNarrow(d)) value.re = FormatOf(d).Decode(static_cast<uint32_t>(value.bits));
  } else if (IsDouble(d)) {
    value.re = Get<double>(from);
    if (IsComplex(d)) value.im = Get<double>(from + 8);
  } else {
    value.re = Get<float>(from);
    if (IsComplex(d)) value.im = Get<float>(from + 4);
  }
  return value;
}

inline void Write(DType d, char* to, const Value& value) {
  if (IsInteger(d)) {
    std::memcpy(to, &value.bits, ElementBytes(d));
  } else if (IsNarrow(d)) {
    const uint32_t code = FormatOf(d).Encode(static_cast<float>(value.re));
    std::memcpy(to, &code, ElementBytes(d));
  } else if (IsDouble(d)) {
    Put(to, value.re);
    if (IsComplex(d)) Put(to + 8, value.im);
  } else {
    Put(to, static_cast<float>(value.re));
    if (IsComplex(d)) Put(to + 4, static_cast<float>(value.im));
  }
}

template <class T>
Value CombineFloats(ReduceOp op, const Value& x, const Value& y) {
  const T a = static_cast<T>(x.re), b = static_cast<T>(y.re), ai = static_cast<T>(x.im), bi = static_cast<T>(y.im);
  if (op == ReduceOp::kSum) return {T(a + b), T(ai + bi)};
  if (op == ReduceOp::kProd) {
    const T rr = a * b, ii = ai * bi, ri = a * bi, ir = ai * b;
    return {T(rr - ii), T(ir + ri)};
  }
  if (std::isnan(a) || std::isnan(b)) return {std::numeric_limits<double>::quiet_NaN()};
  const bool a_first = a < b || (a == b && std::signbit(a));
  return {a_first == (op == ReduceOp::kMin) ? a : b};
}

// Products of real numbers use re alone: im is 0, and infinity times 0 would be NaN.
inline Value Combine(DType d, ReduceOp op, const Value& a, const Value& b) {
  if (!IsInteger(d)) {
    if (op == ReduceOp::kProd && !IsComplex(d)) {
      return {IsDouble(d) ? a.re * b.re : static_cast<double>(static_cast<float>(a.re) * static_cast<float>(b.re))};
    }
    return IsDouble(d) ? CombineFloats<double>(op, a, b) : CombineFloats<float>(op, a, b);
  }
  const bool less = IsSigned(d) ? static_cast<int64_t>(a.bits) < static_cast<int64_t>(b.bits) : a.bits < b.bits;
  uint64_t bits = 0;
  switch (op) {
    case ReduceOp::kSum:
      bits = a.bits + b.bits;
      break;
    case ReduceOp::kProd:
      bits = a.bits * b.bits;
      break;
    case ReduceOp::kMin:
      bits = less ? a.bits : b.bits;
      break;
    case ReduceOp::kMax:
      bits = less ? b.bits : a.bits;
      break;
    case ReduceOp::kAnd:
      bits = a.bits & b.bits;
      break;
    case ReduceOp::kOr:
      bits = a.bits | b.bits;
      break;
    case ReduceOp::kXor:
      bits = a.bits ^ b.bits;
      break;
  }
  return {0, 0, bits};
}

inline Value Divide(DType d, Value value, uint64_t divisor) {
  if (divisor == 0 || IsInteger(d)) return value;
  if (IsDouble(d)) return {value.re / static_cast<double>(divisor), value.im / static_cast<double>(divisor)};
  const float by = static_cast<float>(divisor);
  return {static_cast<float>(value.re) / by, static_cast<float>(value.im) / by};
}

inline bool SameNumber(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

// Whether the bits are equal, or both are NaN.
inline bool SameElement(DType d, const char* a, const char* b) {
  if (std::memcmp(a, b, ElementBytes(d)) == 0) return true;
  if (IsInteger(d)) return false;
  const Value x = Read(d, a), y = Read(d, b);
  return SameNumber(x.re, y.re) && SameNumber(x.im, y.im);
}

}  // namespace jaxring::test
