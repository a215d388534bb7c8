// The functions of epilogues on single elements: what ffi/reduce/epilogues.h has for vectors, from the same source.
#pragma once

#include "cuda/device/arithmetic.h"
#include "cuda/device/float_arrays.h"

#define JAXRING_ISA cuda
#define JAXRING_INLINE JAXRING_DEVICE
#include "reduce/functions.h"
#undef JAXRING_INLINE
#undef JAXRING_ISA

namespace jaxring::cuda {
namespace {

// What all functions together need: the most operands and states, and the fewest operands before a state.
template <class List>
struct Arrays;
template <class... Function>
struct Arrays<FunctionList<Function...>> {
  static constexpr int Most() {
    int most = 0;
    ((most = Function::kOperands + Function::kStates > most ? Function::kOperands + Function::kStates : most), ...);
    return most;
  }
  static constexpr int FirstState() {
    int first = Most();
    ((first = Function::kStates > 0 && Function::kOperands < first ? Function::kOperands : first), ...);
    return first;
  }
};
inline constexpr uint32_t kMostArrays = Arrays<Functions>::Most(), kFirstState = Arrays<Functions>::FirstState();

// Applies the function of that number to values of a thread, and changes the states among the arrays' elements.
template <class T, int kCount>
struct OnElements {
  const char* parameters;
  T (&values)[kCount];
  T (&arrays)[kMostArrays][kCount];

  template <class Function>
  JAXRING_DEVICE void Use() const {
    constexpr int kFurther = Function::kOperands + Function::kStates;
    T p[Function::kParameters + 1];
    JAXRING_UNROLL
    for (int i = 0; i < Function::kParameters; ++i) p[i] = LoadElement<T>(parameters + i * sizeof(T));
    JAXRING_UNROLL
    for (int u = 0; u < kCount; ++u) {
      T w[kFurther + 1];
      JAXRING_UNROLL
      for (int k = 0; k < kFurther; ++k) w[k] = arrays[k][u];
      Function::template Apply<T>(values[u], w, p);
      JAXRING_UNROLL
      for (int k = Function::kOperands; k < kFurther; ++k) arrays[k][u] = w[k];
    }
  }
  template <class... Function>
  JAXRING_DEVICE void UseOf(uint32_t number, FunctionList<Function...>) const {
    uint32_t at = 0;
    ((number == at++ ? Use<Function>() : void()), ...);
  }
};

// On every 32nd element of [begin, end), as the operands count them. The arrays are accessed here, once for all
// functions, since their dtypes make most of the code.
template <class T, int kCount>
JAXRING_DEVICE void ApplyFunction(const EpilogueArgs& epilogue, const EpilogueArgs::Function& function, uint64_t begin,
                                  uint64_t end, T (&values)[kCount]) {
  const EpilogueArgs::Further* further = epilogue.further + function.further;
  T arrays[kMostArrays][kCount] = {};
  JAXRING_UNROLL
  for (uint32_t k = 0; k < kMostArrays; ++k) {
    if (k < function.arrays) LoadValues(further[k].from, further[k].dtype, begin, end, arrays[k]);
  }
  const OnElements<T, kCount> on{epilogue.parameters + function.parameter * sizeof(T), values, arrays};
  on.UseOf(function.number, Functions{});
  JAXRING_UNROLL
  for (uint32_t k = kFirstState; k < kMostArrays; ++k) {
    if (k < function.arrays && further[k].to != nullptr) {
      StoreValues(further[k].to, further[k].dtype, begin, end, arrays[k]);
    }
  }
}

}  // namespace
}  // namespace jaxring::cuda
