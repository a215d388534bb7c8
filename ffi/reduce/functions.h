// The functions that a plan applies to complete values, a struct for each: the source of both engines' functions. The
// CPU engine's are for vectors of an instruction set (reduce/epilogues.h), those of the kernels for elements
// (cuda/device/element_functions.h).
//
// To be included by these two alone, which define JAXRING_ISA and JAXRING_INLINE, and Min, Max and SquareRoot in that
// namespace. A function is written once for T, float and double, and V, what stands for one T or several: `v` is the
// value in and out, `w` are the operands and behind them the states, and `p` are the parameters. Nothing is contracted
// to fused multiply-adds, so that all of them give the same bits. jaxring/epilogues/functions.py says the same in JAX.
#pragma once

namespace jaxring::JAXRING_ISA {
namespace {

// A conversion to another dtype: the plan's result dtype says which, and rounds.
struct Cast {
  static constexpr const char* kName = "cast";
  static constexpr int kParameters = 0, kOperands = 0, kStates = 0;
  template <class T, class V>
  JAXRING_INLINE static void Apply(V&, V*, const V*) {}
};

struct Scale {
  static constexpr const char* kName = "scale";
  static constexpr int kParameters = 1, kOperands = 0, kStates = 0;  // the factor
  template <class T, class V>
  JAXRING_INLINE static void Apply(V& v, V*, const V* p) {
    v = v * p[0];
  }
};

// NaN stays NaN.
struct Clip {
  static constexpr const char* kName = "clip";
  static constexpr int kParameters = 2, kOperands = 0, kStates = 0;  // the least and the greatest value
  template <class T, class V>
  JAXRING_INLINE static void Apply(V& v, V*, const V* p) {
    v = Min::Apply<T>(Max::Apply<T>(v, p[0]), p[1]);
  }
};

// The value is a gradient and becomes the parameter after the step.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr int kParameters = 2, kOperands = 1, kStates = 0;  // learning rate, weight decay; the parameter
  template <class T, class V>
  JAXRING_INLINE static void Apply(V& v, V* w, const V* p) {
    v = w[0] - p[0] * (v + p[1] * w[0]);
  }
};

// As Sgd, with a trace of the gradients. Nesterov's step is trace' * momentum + gradient; p[3] is 1 for it, else 0.
struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr int kParameters = 4, kOperands = 1, kStates = 1;  // rate, decay, momentum, nesterov; the trace
  template <class T, class V>
  JAXRING_INLINE static void Apply(V& v, V* w, const V* p) {
    const V gradient = v + p[1] * w[0];
    const V trace = gradient + p[2] * w[1];
    const V ahead = gradient + p[2] * trace;
    v = w[0] - p[0] * (p[3] != T(0) ? ahead : trace);
    w[1] = trace;
  }
};

// Adam (Kingma and Ba, 2015), with AdamW's decay. The parameters: learning rate, weight decay, b1, 1 - b1, b2, 1 - b2,
// 1 / (1 - b1^step), 1 / (1 - b2^step), and epsilon.
struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr int kParameters = 9, kOperands = 1, kStates = 2;  // the parameter; its two moments
  template <class T, class V>
  JAXRING_INLINE static void Apply(V& v, V* w, const V* p) {
    w[1] = p[3] * v + p[2] * w[1];
    w[2] = p[5] * (v * v) + p[4] * w[2];
    const V update = (w[1] * p[6]) / (SquareRoot<T>(w[2] * p[7]) + p[8]);
    v = w[0] - p[0] * (update + p[1] * w[0]);
  }
};

// All of them. Their places in the list are their numbers.
template <class... Function>
struct FunctionList {};
using Functions = FunctionList<Cast, Scale, Clip, Sgd, Momentum, Adam>;

}  // namespace
}  // namespace jaxring::JAXRING_ISA
