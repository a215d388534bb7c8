// A kernel that does nothing: what any launch takes, for measurements.
#pragma once

namespace jaxring::cuda {

// Returns a cudaError_t.
int LaunchEmpty(void* stream);

}  // namespace jaxring::cuda
