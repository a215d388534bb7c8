// Reduces packs: converts elements to accumulators and back, and applies the operation, which is selected once for
// several vectors of a thread. kWiden: the number of accumulator vectors of a pack (Widening()).
#pragma once

#include "cuda/device/arithmetic.h"
#include "cuda/device/device_formats.h"

namespace jaxring::cuda {

// The kernel's dtype and operation, prepared for the loops.
struct Arithmetic {
  DType dtype;
  Code code;
  uint64_t divisor;  // 0: none
};

// Operations: Fold combines vectors of accumulators into the first.
template <class T, class Op>
struct Elementwise {
  template <int kN>
  JAXRING_DEVICE static void Fold(Vec (&a)[kN], const Vec (&b)[kN]) {
    Apply<T, Op>(a, b);
  }
};
template <class T>
struct ComplexProduct {
  template <int kN>
  JAXRING_DEVICE static void Fold(Vec (&a)[kN], const Vec (&b)[kN]) {
    ApplyComplex<T>(a, b);
  }
};
template <Code kCode>
struct Bitwise {
  template <int kN>
  JAXRING_DEVICE static void Fold(Vec (&a)[kN], const Vec (&b)[kN]) {
    JAXRING_UNROLL
    for (int i = 0; i < 4 * kN; ++i) {
      uint32_t& word = a[i / 4].w[i % 4];
      const uint32_t other = b[i / 4].w[i % 4];
      word = kCode == Code::kAnd ? word & other : kCode == Code::kOr ? word | other : word ^ other;
    }
  }
};

// Calls `use` with the operation of that code.
template <int kWiden, class Use>
JAXRING_DEVICE auto WithOperation(Code code, const Use& use) {
  if constexpr (kWiden > 1) {  // accumulators are float32
    switch (code) {
      case Code::kSumF32:
        return use(Elementwise<float, Sum>{});
      case Code::kProdF32:
        return use(Elementwise<float, Prod>{});
      case Code::kMinF32:
        return use(Elementwise<float, Min>{});
      default:
        return use(Elementwise<float, Max>{});
    }
  } else {
    switch (code) {
#define JAXRING_CASE(name, Type, Op) \
  case Code::name:                   \
    return use(Elementwise<Type, Op>{});
      JAXRING_CASE(kSum8, uint8_t, Sum)
      JAXRING_CASE(kSum16, uint16_t, Sum)
      JAXRING_CASE(kSum32, uint32_t, Sum)
      JAXRING_CASE(kSum64, uint64_t, Sum)
      JAXRING_CASE(kSumF32, float, Sum)
      JAXRING_CASE(kSumF64, double, Sum)
      JAXRING_CASE(kProd8, uint8_t, Prod)
      JAXRING_CASE(kProd16, uint16_t, Prod)
      JAXRING_CASE(kProd32, uint32_t, Prod)
      JAXRING_CASE(kProd64, uint64_t, Prod)
      JAXRING_CASE(kProdF32, float, Prod)
      JAXRING_CASE(kProdF64, double, Prod)
      JAXRING_CASE(kMinS8, int8_t, Min)
      JAXRING_CASE(kMinS16, int16_t, Min)
      JAXRING_CASE(kMinS32, int32_t, Min)
      JAXRING_CASE(kMinS64, int64_t, Min)
      JAXRING_CASE(kMinU8, uint8_t, Min)
      JAXRING_CASE(kMinU16, uint16_t, Min)
      JAXRING_CASE(kMinU32, uint32_t, Min)
      JAXRING_CASE(kMinU64, uint64_t, Min)
      JAXRING_CASE(kMinF32, float, Min)
      JAXRING_CASE(kMinF64, double, Min)
      JAXRING_CASE(kMaxS8, int8_t, Max)
      JAXRING_CASE(kMaxS16, int16_t, Max)
      JAXRING_CASE(kMaxS32, int32_t, Max)
      JAXRING_CASE(kMaxS64, int64_t, Max)
      JAXRING_CASE(kMaxU8, uint8_t, Max)
      JAXRING_CASE(kMaxU16, uint16_t, Max)
      JAXRING_CASE(kMaxU32, uint32_t, Max)
      JAXRING_CASE(kMaxU64, uint64_t, Max)
      JAXRING_CASE(kMaxF32, float, Max)
      JAXRING_CASE(kMaxF64, double, Max)
#undef JAXRING_CASE
      case Code::kProdC64:
        return use(ComplexProduct<float>{});
      case Code::kProdC128:
        return use(ComplexProduct<double>{});
      case Code::kAnd:
        return use(Bitwise<Code::kAnd>{});
      case Code::kOr:
        return use(Bitwise<Code::kOr>{});
      default:
        return use(Bitwise<Code::kXor>{});
    }
  }
}

template <int kN>
struct FoldOnce {
  Vec (&a)[kN];
  const Vec (&b)[kN];
  template <class Operation>
  JAXRING_DEVICE void operator()(Operation operation) const {
    operation.Fold(a, b);
  }
};

// Looks the operation up for each fold: less code, for what runs seldom.
template <int kWiden>
struct AnyOperation {
  Code code;
  template <int kN>
  JAXRING_DEVICE void Fold(Vec (&a)[kN], const Vec (&b)[kN]) const {
    WithOperation<kWiden>(code, FoldOnce<kN>{a, b});
  }
};
template <int kWiden, int kN>
JAXRING_DEVICE void Fold(const Arithmetic& how, Vec (&a)[kN], const Vec (&b)[kN]) {
  AnyOperation<kWiden>{how.code}.Fold(a, b);
}

// mean: floats and complex numbers only.
template <int kWiden, int kN>
JAXRING_DEVICE void Divide(const Arithmetic& how, Vec (&a)[kN]) {
  if (kWiden == 1 && (how.dtype == DType::kF64 || how.dtype == DType::kC128)) {
    const double by = static_cast<double>(how.divisor);
    JAXRING_UNROLL
    for (int i = 0; i < 2 * kN; ++i) SetWord64(a[i / 2], i % 2, AsBits(AsDouble(Word64(a[i / 2], i % 2)) / by));
  } else if (kWiden > 1 || how.dtype == DType::kF32 || how.dtype == DType::kC64) {
    const float by = static_cast<float>(how.divisor);
    JAXRING_UNROLL
    for (int i = 0; i < 4 * kN; ++i) a[i / 4].w[i % 4] = AsBits(AsFloat(a[i / 4].w[i % 4]) / by);
  }
}

template <class Format>
JAXRING_DEVICE void WidenBytes(uint32_t word, Vec& to) {
  JAXRING_UNROLL
  for (int i = 0; i < 4; ++i) to.w[i] = AsBits(Format::Unpack(word >> 8 * i & 0xffu));
}
template <class Format>
JAXRING_DEVICE uint32_t NarrowBytes(const Vec& from) {
  uint32_t word = 0;
  JAXRING_UNROLL
  for (int i = 0; i < 4; ++i) word |= Format::Pack(AsFloat(from.w[i])) << 8 * i;
  return word;
}

// A pack of elements as its accumulators, in the order of the elements.
template <int kWiden>
JAXRING_DEVICE void Widen(const Arithmetic& how, const Vec& raw, Vec* to) {
  if constexpr (kWiden == 1) {
    to[0] = raw;
  } else if constexpr (kWiden == 2) {
    JAXRING_UNROLL
    for (int i = 0; i < 4; ++i) {
      float low, high;
      if (how.dtype == DType::kF16) {
        UnpackHalves(raw.w[i], &low, &high);
      } else {
        low = AsFloat(raw.w[i] << 16);
        high = AsFloat(raw.w[i] & 0xffff0000u);
      }
      to[i / 2].w[2 * (i % 2)] = AsBits(low);
      to[i / 2].w[2 * (i % 2) + 1] = AsBits(high);
    }
  } else {
    JAXRING_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (how.dtype == DType::kF8E4M3FN) {
        WidenBytes<Float8E4M3FN>(raw.w[i], to[i]);
      } else {
        WidenBytes<Float8E5M2>(raw.w[i], to[i]);
      }
    }
  }
}

// Rounded once, to nearest even.
template <int kWiden>
JAXRING_DEVICE Vec Narrow(const Arithmetic& how, const Vec* from) {
  if constexpr (kWiden == 1) {
    return from[0];
  } else {
    Vec raw;
    JAXRING_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWiden == 2) {
        const float low = AsFloat(from[i / 2].w[2 * (i % 2)]), high = AsFloat(from[i / 2].w[2 * (i % 2) + 1]);
        raw.w[i] = how.dtype == DType::kF16 ? PackHalves(low, high) : PackBfloat16s(low, high);
      } else {
        raw.w[i] =
            how.dtype == DType::kF8E4M3FN ? NarrowBytes<Float8E4M3FN>(from[i]) : NarrowBytes<Float8E5M2>(from[i]);
      }
    }
    return raw;
  }
}

}  // namespace jaxring::cuda
