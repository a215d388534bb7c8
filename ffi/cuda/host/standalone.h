// Runs plans on buffers of our own, without XLA: for tests on real GPUs, where several ranks of one process share a
// device as they cannot under JAX, and for measuring kernels by themselves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/host/launcher.h"

namespace jaxring::cuda {

struct StandaloneResult {
  std::vector<std::string> outputs;  // of each rank
  // By the host's clock, the first launch left out: of one launch on all ranks, one after another without waiting, and
  // the median of launches that are waited for one by one.
  double microseconds = 0, waited = 0;
};

// All ranks must be of this process. Launches the plan once for the result and then `launches` times for each clock.
// Throws GpuError, or std::runtime_error for what a launch returns or its kernel reports.
StandaloneResult RunStandalone(LaunchPlan& plan, const std::vector<std::string_view>& inputs, int launches);

// Microseconds of a copy of so many bytes within a device, by the host's clock.
double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies);

// What RunStandalone's clocks show where `ranks` ranks, dealt to the devices in turn, launch a kernel that does
// nothing.
StandaloneResult TimeEmpty(Gpu& gpu, int ranks, int launches);

}  // namespace jaxring::cuda
