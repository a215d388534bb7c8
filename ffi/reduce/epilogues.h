// The functions that a plan applies to complete values: a struct for each, and its name in `kEpilogues`. Per
// instruction set: see vectors.h.
//
// A function is written once for float and double. `v` is the value in and out, `w` are the operands and behind them
// the states, and `p` are the parameters, each in all lanes. jaxring/epilogues/functions.py says the same in JAX.
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

// A conversion to another dtype: the plan's result dtype says which, and rounds.
struct Cast {
  static constexpr const char* kName = "cast";
  static constexpr int kParameters = 0, kOperands = 0, kStates = 0;
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>&, Vector<T>*, const Vector<T>*) {}
};

struct Scale {
  static constexpr const char* kName = "scale";
  static constexpr int kParameters = 1, kOperands = 0, kStates = 0;  // the factor
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>& v, Vector<T>*, const Vector<T>* p) {
    v = v * p[0];
  }
};

// NaN stays NaN.
struct Clip {
  static constexpr const char* kName = "clip";
  static constexpr int kParameters = 2, kOperands = 0, kStates = 0;  // the least and the greatest value
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>& v, Vector<T>*, const Vector<T>* p) {
    v = Min::Apply<T>(Max::Apply<T>(v, p[0]), p[1]);
  }
};

// The value is a gradient and becomes the parameter after the step.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr int kParameters = 2, kOperands = 1, kStates = 0;  // learning rate, weight decay; the parameter
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>& v, Vector<T>* w, const Vector<T>* p) {
    v = w[0] - p[0] * (v + p[1] * w[0]);
  }
};

// As Sgd, with a trace of the gradients. Nesterov's step is trace' * momentum + gradient; p[3] is 1 for it, else 0.
struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr int kParameters = 4, kOperands = 1, kStates = 1;  // rate, decay, momentum, nesterov; the trace
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>& v, Vector<T>* w, const Vector<T>* p) {
    const Vector<T> gradient = v + p[1] * w[0];
    const Vector<T> trace = gradient + p[2] * w[1];
    const Vector<T> ahead = gradient + p[2] * trace;
    v = w[0] - p[0] * (p[3] != T(0) ? ahead : trace);
    w[1] = trace;
  }
};

// Adam (Kingma and Ba, 2015), with AdamW's decay. The parameters: learning rate, weight decay, b1, 1 - b1, b2, 1 - b2,
// 1 / (1 - b1^step), 1 / (1 - b2^step), and epsilon.
struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr int kParameters = 9, kOperands = 1, kStates = 2;  // the parameter; its two moments
  template <class T>
  JAXRING_INLINE static void Apply(Vector<T>& v, Vector<T>* w, const Vector<T>* p) {
    w[1] = p[3] * v + p[2] * w[1];
    w[2] = p[5] * (v * v) + p[4] * w[2];
    const Vector<T> update = (w[1] * p[6]) / (SquareRoot<T>(w[2] * p[7]) + p[8]);
    v = w[0] - p[0] * (update + p[1] * w[0]);
  }
};

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

constexpr Epilogue kEpilogues[] = {Row<Cast>(), Row<Scale>(), Row<Clip>(), Row<Sgd>(), Row<Momentum>(), Row<Adam>()};

}  // namespace
}  // namespace jaxring::JAXRING_ISA
