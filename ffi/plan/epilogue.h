// What a plan's steps with `StepFlag::kEpilogue` apply to complete values: functions one after another, their further
// operands, and the dtype in which the results leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reduce/kernels.h"

namespace jaxring {

// The most operands and states of one epilogue.
inline constexpr size_t kMostFurther = 8;

struct PlanEpilogue {
  // A function, its first parameter, and the first of its operands and states in `further`.
  struct Stage {
    const Epilogue* function;
    size_t parameter, further;
  };
  // An operand, or a state, of a stage: an array of the result's shape.
  struct Further {
    const Kernels* kernels;  // of sums of its dtype
    int state;               // its place among the states, which are results, too; -1 for an operand
    DType dtype;
  };
  std::vector<Stage> stages;
  std::vector<Further> further;           // of all stages, each with its operands before its states
  const Kernels* accumulators = nullptr;  // of sums of the accumulators' dtype
  DType result_dtype{};
  const Kernels* result = nullptr;  // of sums of the result's dtype
  bool doubles = false;             // whether values and parameters are doubles, else floats
  size_t parameters = 0, states = 0;
  size_t parameter_bytes() const { return parameters * (doubles ? sizeof(double) : sizeof(float)); }
};

// Makes the epilogue of these functions, for values that accumulate as those of `data`. `further` has the dtypes of the
// operands and states of all functions. Throws std::invalid_argument for a function that does not exist, for a number
// of dtypes that is not theirs, and for dtypes that are no floats or accumulate otherwise.
std::shared_ptr<const PlanEpilogue> MakeEpilogue(const std::vector<std::string>& functions, DType data, DType result,
                                                 const std::vector<DType>& further);

}  // namespace jaxring
