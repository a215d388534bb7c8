// The operations on vectors of accumulators. Per instruction set: see vectors.h.
#pragma once

#include "reduce/vectors.h"

namespace jaxring::JAXRING_ISA {
namespace {

// Integers come as unsigned lanes, so that they wrap.
struct Sum {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a + b;
  }
};

struct Prod {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a * b;
  }
};

// Each pair of lanes is a real and an imaginary part. The plain formula, as XLA has it: infinities are not recovered.
struct ComplexProd {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return ApplyLanes<T>(a, b, std::make_index_sequence<kLanes<T>>());
  }

 private:
  template <class T, size_t... kLane>
  JAXRING_INLINE static Vector<T> ApplyLanes(Vector<T> a, Vector<T> b, std::index_sequence<kLane...>) {
    Vector<T> real = __builtin_shufflevector(b, b, (kLane & ~size_t{1})...);
    Vector<T> imaginary = __builtin_shufflevector(b, b, (kLane | 1)...);
    Vector<T> crossed = __builtin_shufflevector(a, a, (kLane ^ 1)...) * imaginary;
    using Int = Vector<typename IntOf<T>::Type>;
    Int negate_real = (Int)Vector<T>{(kLane % 2 ? T(0) : T(-0.0))...};
    return a * real + (Vector<T>)((Int)crossed ^ negate_real);
  }
};

// a < b ? a : b for floats, in one instruction if there is one, which gcc 12 does not find by itself.
template <class T>
JAXRING_INLINE Vector<T> SelectLess(Vector<T> a, Vector<T> b) {
  if constexpr (sizeof(T) == 4) {
#if !defined(__x86_64__)
    return a < b ? a : b;
#elif JAXRING_VECTOR_BYTES == 16
    return _mm_min_ps(a, b);
#elif JAXRING_VECTOR_BYTES == 32
    return _mm256_min_ps(a, b);
#else
    return _mm512_maskz_min_ps(0xffff, a, b);
#endif
  } else {
#if !defined(__x86_64__)
    return a < b ? a : b;
#elif JAXRING_VECTOR_BYTES == 16
    return _mm_min_pd(a, b);
#elif JAXRING_VECTOR_BYTES == 32
    return _mm256_min_pd(a, b);
#else
    return _mm512_maskz_min_pd(0xff, a, b);
#endif
  }
}

// Floats: the result is NaN if either operand is, and -0 is less than +0, so the order of the operands does not matter.
struct Min {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    if constexpr (T(0.5) == T(0)) {
      return a < b ? a : b;
    } else {
#if defined(__aarch64__)
      // FMIN treats NaN and zeros of both signs so.
      if constexpr (sizeof(T) == 4) {
        return (Vector<T>)vminq_f32((float32x4_t)a, (float32x4_t)b);
      } else {
        return (Vector<T>)vminq_f64((float64x2_t)a, (float64x2_t)b);
      }
#else
      // The two differ only for zeros of both signs and for NaN, and there the OR of the bits is the result.
      using Int = Vector<typename IntOf<T>::Type>;
      return (Vector<T>)((Int)SelectLess<T>(a, b) | (Int)SelectLess<T>(b, a));
#endif
    }
  }
};

struct Max {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    if constexpr (T(0.5) == T(0)) {
      return a > b ? a : b;
    } else {
      return -Min::Apply<T>(-a, -b);
    }
  }
};

struct And {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a & b;
  }
};

struct Or {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a | b;
  }
};

struct Xor {
  template <class T>
  JAXRING_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a ^ b;
  }
};

}  // namespace
}  // namespace jaxring::JAXRING_ISA
