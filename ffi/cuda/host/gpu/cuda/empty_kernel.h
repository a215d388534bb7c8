// A kernel that does nothing: what any launch takes, for measurements.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// With `args`, a kernel of as many blocks and as large parameters as a collective's has; without, of one thread.
// Returns a cudaError_t.
int LaunchEmpty(const Args* args, int threads, void* stream);

}  // namespace jaxring::cuda
