// What keeps a program from going on with a failed collective's data.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Enqueues a kernel that traps if `status` holds a fault by then: the context is lost, and every later call of this
// process on the device fails. Returns a cudaError_t.
int LaunchGuard(const Status* status, void* stream);

// Loads it into the current context, so that no launch has to. Returns a cudaError_t.
int LoadGuard();

}  // namespace jaxring::cuda
