// Whether a rank's buffers are those of a plan's epilogue: for both engines.
#pragma once

#include "engine/operation/operation.h"

namespace jaxring {

// Whether a rank's buffers fit its plan's epilogue over that many elements of the output. False, too, where only one of
// the two is there.
[[gnu::cold]] inline bool Fit(const PlanEpilogue* epilogue, const EpilogueBuffers* buffers, uint64_t elements) {
  if (epilogue == nullptr || buffers == nullptr) return false;
  if (buffers->parameters.bytes != epilogue->parameter_bytes() || buffers->further.size() != epilogue->further.size() ||
      buffers->states.size() != epilogue->states) {
    return false;
  }
  for (size_t i = 0; i < epilogue->further.size(); ++i) {
    const auto& [kernels, state, dtype] = epilogue->further[i];
    const uint64_t bytes = elements * kernels->element_bytes;
    if (buffers->further[i].bytes != bytes) return false;
    if (state >= 0 && buffers->states[static_cast<size_t>(state)].bytes != bytes) return false;
  }
  return true;
}

}  // namespace jaxring
