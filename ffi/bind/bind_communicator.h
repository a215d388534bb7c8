// The communicators of the CUDA engine, which Python sets up rank by rank.
#pragma once

#include <nanobind/nanobind.h>

#include "cuda/host/gpu_runtime.h"

namespace jaxring::cuda {

// The runtime of this module. Throws std::runtime_error where there is none.
Runtime& Cuda();

void BindCommunicator(nanobind::module_& m);

}  // namespace jaxring::cuda
