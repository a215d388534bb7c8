// Runs plans on buffers of our own, without XLA: for tests on real GPUs, where several ranks of one process share a
// device as they cannot under JAX, and for measuring kernels by themselves.
#pragma once

#include <string>
#include <vector>

#include "ffi/cuda/host/launcher.h"

namespace jaxring::cuda {

struct TrialResult {
  std::vector<std::string> outputs;  // of each rank
  double microseconds = 0;           // of one launch on all ranks, by the host's clock, the first one left out
};

// All ranks must be of this process. Launches the plan once for the result and then `launches` times for the clock.
// Throws GpuError, or std::runtime_error for what a launch returns or its kernel reports.
TrialResult RunTrial(LaunchPlan& plan, const std::vector<std::string>& inputs, int launches);

// Microseconds of a copy of so many bytes within a device, by the host's clock.
double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies);

}  // namespace jaxring::cuda
