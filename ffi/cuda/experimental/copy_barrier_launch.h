// Launches the barriers between which copy engines move a collective's bytes (ffi/cuda/experimental/copy_barrier.h).
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Enqueues an opening or closing barrier on a CUstream. Returns a cudaError_t.
int LaunchCopyBarrier(bool open, const Args& args, void* stream);

// Loads the kernel into the current context ahead of its launches. Returns a cudaError_t.
int LoadCopyBarrier();

}  // namespace jaxring::cuda
