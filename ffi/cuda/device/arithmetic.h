// The arithmetic of reductions on 16-byte vectors of accumulators: the same bits as ffi/reduce on the host. Compiled
// without contraction (-fmad=false) and without flushing subnormals.
#pragma once

#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/tables.h"

namespace jaxring::cuda {

// The operations on accumulators of any dtype. Not every operation is defined for every type.
enum class Code : uint8_t {
  kSum8,
  kSum16,
  kSum32,
  kSum64,
  kSumF32,
  kSumF64,
  kProd8,
  kProd16,
  kProd32,
  kProd64,
  kProdF32,
  kProdF64,
  kProdC64,
  kProdC128,
  kMinS8,
  kMinS16,
  kMinS32,
  kMinS64,
  kMinU8,
  kMinU16,
  kMinU32,
  kMinU64,
  kMinF32,
  kMinF64,
  kMaxS8,
  kMaxS16,
  kMaxS32,
  kMaxS64,
  kMaxU8,
  kMaxU16,
  kMaxU32,
  kMaxU64,
  kMaxF32,
  kMaxF64,
  kAnd,
  kOr,
  kXor,
};  // clang-format off

// `log2` of an integer's bytes, and the code of the first entry of its row.
constexpr Code At(Code first, int log2) { return static_cast<Code>(static_cast<int>(first) + log2); }

constexpr Code CodeOf(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAnd) return Code::kAnd;
  if (op == ReduceOp::kOr) return Code::kOr;
  if (op == ReduceOp::kXor) return Code::kXor;
  const bool integer = dtype <= DType::kUInt64, is_signed = dtype >= DType::kInt8 && dtype <= DType::kInt64;
  const int number = static_cast<int>(dtype);
  const int log2 = dtype == DType::kBool ? 0 : is_signed ? number - 1 : number - static_cast<int>(DType::kUInt8);
  const bool complex = dtype >= DType::kC64, wide = dtype == DType::kF64 || dtype == DType::kC128;
  switch (op) {
    case ReduceOp::kSum: return integer ? At(Code::kSum8, log2) : wide ? Code::kSumF64 : Code::kSumF32;
    case ReduceOp::kProd:
      if (integer) return At(Code::kProd8, log2);
      if (complex) return wide ? Code::kProdC128 : Code::kProdC64;
      return wide ? Code::kProdF64 : Code::kProdF32;
    case ReduceOp::kMin:
      if (integer) return At(is_signed ? Code::kMinS8 : Code::kMinU8, log2);
      return wide ? Code::kMinF64 : Code::kMinF32;
    default:
      if (integer) return At(is_signed ? Code::kMaxS8 : Code::kMaxU8, log2);
      return wide ? Code::kMaxF64 : Code::kMaxF32;
  }
}
// clang-format on

struct Sum;
struct Min;
struct Max;

// Words of smaller integers: all bytes at once if there is an instruction for it, else element by element.
template <class T, class Op>
JAXRING_DEVICE uint32_t Elements(uint32_t a, uint32_t b) {
  constexpr int kBits = 8 * sizeof(T);
  if constexpr (kBits == 32) {
    return static_cast<uint32_t>(Op::template Apply<T>(static_cast<T>(a), static_cast<T>(b)));
  } else if constexpr (kBits == 8 && std::is_same_v<Op, Sum>) {
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
  } else if constexpr (kBits == 8 && std::is_same_v<Op, Min>) {
    return LeastBytes(a, b, std::is_signed_v<T>);
  } else if constexpr (kBits == 8 && std::is_same_v<Op, Max>) {
    return GreatestBytes(a, b, std::is_signed_v<T>);
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    uint32_t word = 0;
    JAXRING_UNROLL
    for (int at = 0; at < 32; at += kBits) {
      const T element = Op::template Apply<T>(static_cast<T>(a >> at), static_cast<T>(b >> at));
      word |= static_cast<uint32_t>(static_cast<Unsigned>(element)) << at;
    }
    return word;
  }
}

struct Sum {
  template <class T>
  JAXRING_DEVICE static T Apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Prod {
  template <class T>
  JAXRING_DEVICE static T Apply(T a, T b) {
    // Narrow unsigned elements would be promoted to int and could overflow it.
    if constexpr (sizeof(T) < 4) {
      return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    } else {
      return a * b;
    }
  }
};

JAXRING_DEVICE float FromBits(uint32_t bits) { return AsFloat(bits); }
JAXRING_DEVICE double FromBits(uint64_t bits) { return AsDouble(bits); }

// Floats: the result is NaN if either operand is, and -0 is less than +0, so the order of the operands does not matter.
// The two selections differ only for zeros of both signs and for NaN, and there the OR of the bits is the result.
struct Min {
  template <class T>
  JAXRING_DEVICE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return FromBits(AsBits(a < b ? a : b) | AsBits(b < a ? b : a));
    } else {
      return a < b ? a : b;
    }
  }
};
struct Max {
  template <class T>
  JAXRING_DEVICE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return -Min::Apply<T>(-a, -b);
    } else {
      return a > b ? a : b;
    }
  }
};

JAXRING_DEVICE uint64_t Word64(const Vec& v, int i) { return static_cast<uint64_t>(v.w[2 * i + 1]) << 32 | v.w[2 * i]; }
JAXRING_DEVICE void SetWord64(Vec& v, int i, uint64_t value) {
  v.w[2 * i] = static_cast<uint32_t>(value);
  v.w[2 * i + 1] = static_cast<uint32_t>(value >> 32);
}

// a[k] = a[k] op b[k] for vectors of T.
template <class T, class Op, int kN>
JAXRING_DEVICE void Apply(Vec (&a)[kN], const Vec (&b)[kN]) {
  JAXRING_UNROLL
  for (int k = 0; k < kN; ++k) {
    if constexpr (std::is_same_v<T, float>) {
      JAXRING_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[k].w[i] = AsBits(Op::template Apply<float>(AsFloat(a[k].w[i]), AsFloat(b[k].w[i])));
      }
    } else if constexpr (std::is_same_v<T, double>) {
      JAXRING_UNROLL
      for (int i = 0; i < 2; ++i) {
        SetWord64(a[k], i, AsBits(Op::template Apply<double>(AsDouble(Word64(a[k], i)), AsDouble(Word64(b[k], i)))));
      }
    } else if constexpr (sizeof(T) == 8) {
      JAXRING_UNROLL
      for (int i = 0; i < 2; ++i) {
        const T x = static_cast<T>(Word64(a[k], i)), y = static_cast<T>(Word64(b[k], i));
        SetWord64(a[k], i, static_cast<uint64_t>(Op::template Apply<T>(x, y)));
      }
    } else {
      JAXRING_UNROLL
      for (int i = 0; i < 4; ++i) a[k].w[i] = Elements<T, Op>(a[k].w[i], b[k].w[i]);
    }
  }
}

// The plain formula, as XLA has it: infinities are not recovered. The real part adds the negated product of the
// imaginary ones, which gives the bits of a subtraction.
template <class T>
JAXRING_DEVICE void MultiplyComplex(T* re, T* im, T bre, T bim) {
  const T are = *re, aim = *im;
  const T rr = are * bre, ii = aim * bim, ir = aim * bre, ri = are * bim;
  *re = rr - ii;
  *im = ir + ri;
}
template <class T, int kN>
JAXRING_DEVICE void ApplyComplex(Vec (&a)[kN], const Vec (&b)[kN]) {
  JAXRING_UNROLL
  for (int k = 0; k < kN; ++k) {
    if constexpr (sizeof(T) == 4) {
      JAXRING_UNROLL
      for (int i = 0; i < 4; i += 2) {
        float re = AsFloat(a[k].w[i]), im = AsFloat(a[k].w[i + 1]);
        MultiplyComplex(&re, &im, AsFloat(b[k].w[i]), AsFloat(b[k].w[i + 1]));
        a[k].w[i] = AsBits(re);
        a[k].w[i + 1] = AsBits(im);
      }
    } else {
      double re = AsDouble(Word64(a[k], 0)), im = AsDouble(Word64(a[k], 1));
      MultiplyComplex(&re, &im, AsDouble(Word64(b[k], 0)), AsDouble(Word64(b[k], 1)));
      SetWord64(a[k], 0, AsBits(re));
      SetWord64(a[k], 1, AsBits(im));
    }
  }
}

}  // namespace jaxring::cuda
