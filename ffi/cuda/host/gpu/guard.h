// A guard kernel, which stops a program before it uses the data of a failed collective.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Enqueues a kernel that traps if `status` holds a fault when it runs. Then the context is lost, and every later call
// of this process on the device fails. Returns a cudaError_t.
int LaunchGuard(const Status* status, void* stream);

// Loads the kernel into the current context ahead of its launches. Returns a cudaError_t.
int LoadGuard();

}  // namespace jaxring::cuda
