// The functions of functions.h on vectors, and their table. Per instruction set: see vectors.h.
#pragma once

#include "reduce/kernels.h"
#include "reduce/operations.h"

namespace jaxring::JAXRING_ISA {
namespace {

template <class T>
JAXRING_INLINE Vector<T> SquareRoot(Vector<T> a) {
#if defined(__aarch64__)
  if constexpr (sizeof(T) == 4) {
    return (Vector<T>)vsqrtq_f32((float32x4_t)a);
  } else {
    return (Vector<T>)vsqrtq_f64((float64x2_t)a);
  }
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 4) {
#if JAXRING_VECTOR_BYTES == 16
    return _mm_sqrt_ps(a);
#elif JAXRING_VECTOR_BYTES == 32
    return _mm256_sqrt_ps(a);
#else
    return _mm512_maskz_sqrt_ps(0xffff, a);
#endif
  } else {
#if JAXRING_VECTOR_BYTES == 16
    return _mm_sqrt_pd(a);
#elif JAXRING_VECTOR_BYTES == 32
    return _mm256_sqrt_pd(a);
#else
    return _mm512_maskz_sqrt_pd(0xff, a);
#endif
  }
#else
  for (size_t i = 0; i < kLanes<T>; ++i) a[i] = sizeof(T) == 4 ? __builtin_sqrtf(a[i]) : __builtin_sqrt(a[i]);
  return a;
#endif
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA

#include "reduce/functions.h"

namespace jaxring::JAXRING_ISA {
namespace {

template <class Function, class T>
[[gnu::noinline]] void ApplyTo(void* value, void* const* further, const void* parameters, size_t n) {
  constexpr int kParameters = Function::kParameters, kFurther = Function::kOperands + Function::kStates;
  Vector<T> p[kParameters + 1], w[kFurther + 1];
  for (int i = 0; i < kParameters; ++i) p[i] = Broadcast<T>(static_cast<const T*>(parameters)[i]);
  char* const values = static_cast<char*>(value);
  for (size_t i = 0; i < n; i += kLanes<T>) {
    const size_t at = i * sizeof(T);
    Vector<T> v = LoadVector<T>(values + at);
    for (int k = 0; k < kFurther; ++k) w[k] = LoadVector<T>(static_cast<const char*>(further[k]) + at);
    Function::template Apply<T>(v, w, p);
    for (int k = Function::kOperands; k < kFurther; ++k) StoreVector<T>(static_cast<char*>(further[k]) + at, w[k]);
    StoreVector<T>(values + at, v);
  }
}

template <class Function>
constexpr Epilogue Row() {
  return {Function::kName,   Function::kParameters,    Function::kOperands,
          Function::kStates, ApplyTo<Function, float>, ApplyTo<Function, double>};
}

template <class List>
struct Table;
template <class... Function>
struct Table<FunctionList<Function...>> {
  static constexpr Epilogue kRows[] = {Row<Function>()...};
};
constexpr auto& kEpilogues = Table<Functions>::kRows;

}  // namespace
}  // namespace jaxring::JAXRING_ISA
