// A plan's epilogue on a rank's buffers, as kernels read it.
#pragma once

#include "cuda/device/tables.h"
#include "engine/operation/operation.h"

namespace jaxring::cuda {

// The epilogue has at most EpilogueArgs::kMostFunctions functions, and the buffers Fit it.
inline EpilogueArgs EpilogueOn(const PlanEpilogue& epilogue, const EpilogueBuffers& buffers) {
  static_assert(EpilogueArgs::kMostFurther == kMostFurther);
  EpilogueArgs args{};
  args.parameters = buffers.parameters.data;
  args.functions = static_cast<uint32_t>(epilogue.stages.size());
  args.result = epilogue.result_dtype;
  for (size_t i = 0; i < epilogue.stages.size(); ++i) {
    const auto& [function, parameter, further] = epilogue.stages[i];
    args.function[i] = {static_cast<uint32_t>(function - Epilogues().data()), static_cast<uint32_t>(parameter),
                        static_cast<uint32_t>(further), uint32_t{function->operands} + function->states};
  }
  for (size_t i = 0; i < epilogue.further.size(); ++i) {
    const auto& [kernels, state, dtype] = epilogue.further[i];
    char* to = state < 0 ? nullptr : buffers.states[static_cast<size_t>(state)].data;
    args.further[i] = {buffers.further[i].data, to, dtype};
  }
  return args;
}

}  // namespace jaxring::cuda
