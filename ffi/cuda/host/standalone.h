// Standalone runs: plans on buffers of our own, without XLA. For tests on real GPUs, where several ranks of one process
// share a device, which JAX does not allow, and for measuring kernels alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/host/launcher.h"

namespace jaxring::cuda {

struct StandaloneResult {
  std::vector<std::string> outputs;  // of each rank
  // Host time of one launch on all ranks without the first launch: `microseconds` from launches back to back, `waited`
  // as the median of launches that are awaited one by one.
  double microseconds = 0, waited = 0;
};

// All ranks must be in this process. Launches the plan once for the result and then `launches` times for each of the
// two times. Throws GpuError, or std::runtime_error for the error of a launch or of its kernel.
StandaloneResult RunStandalone(LaunchPlan& plan, const std::vector<std::string_view>& inputs, int launches);

// Microseconds of host time for a copy of that many bytes within a device.
double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies);

// RunStandalone's times where `ranks` ranks, assigned to the devices in turn, launch an empty kernel.
StandaloneResult TimeEmpty(Gpu& gpu, int ranks, int launches);

}  // namespace jaxring::cuda
