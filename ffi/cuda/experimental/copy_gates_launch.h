// Launches the gates between which copy engines move a collective's bytes (ffi/cuda/experimental/copy_gates.h).
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Enqueues an opening or closing gate on a CUstream. Returns a cudaError_t.
int LaunchCopyGate(bool open, const Args& args, void* stream);

// Loads the kernel into the current context, so that no launch has to. Returns a cudaError_t.
int LoadCopyGate();

}  // namespace jaxring::cuda
