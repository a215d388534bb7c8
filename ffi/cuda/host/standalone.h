// Standalone runs: plans on buffers of our own, without XLA. For tests on real GPUs, where several ranks of one process
// share a device, which JAX does not allow, and for measuring kernels alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/host/launcher.h"

namespace jaxring::cuda {

// How launches are timed: by the host, or as nodes of one CUDA graph, whose time has no host's work in it.
enum class Timed { kByHost, kInGraph };

template <class Output>
struct StandaloneResult {
  std::vector<Output> outputs;        // of each rank, from the last launch with the inputs
  std::vector<Output> other_outputs;  // from a launch with the other inputs
  // Time of one launch on all ranks: `microseconds` from launches back to back; `waited`, for Timed::kByHost, as the
  // median of launches that are awaited one by one.
  double microseconds = 0, waited = 0;
};

// All ranks must be in this process, whose one thread launches for them in turn. So a launch's commands must fit a
// stream's queue (about 1,000): otherwise the thread would wait for a kernel that waits for the next rank's launch.
// Every launch has the inputs that the one before did not have, so that a result that was left over shows. Launches the
// plan for the results, and `launches` times for each time. Throws GpuError, or std::runtime_error for the error of a
// launch or of its kernel.
StandaloneResult<std::string> RunStandalone(LaunchPlan& plan, const std::vector<std::string_view>& inputs,
                                            const std::vector<std::string_view>& others, int launches, Timed timed);

// The same with inputs that consist of one word of four bytes, and so do the outputs, or it throws std::runtime_error:
// for data so large that copies of it on the host would take longer than what is measured.
StandaloneResult<uint32_t> RunStandaloneWords(LaunchPlan& plan, uint32_t input, uint32_t other, int launches,
                                              Timed timed);

// Microseconds of host time for a copy of that many bytes within a device.
double TimeCopy(Gpu& gpu, int device, uint64_t bytes, int copies);

// RunStandalone's times where `ranks` ranks, assigned to the devices in turn, launch an empty kernel: of one thread
// where `lanes` is 0, otherwise of so many blocks of so many threads, with a collective's parameters.
StandaloneResult<std::string> TimeEmpty(Gpu& gpu, int ranks, int launches, Timed timed, int lanes, int threads);

}  // namespace jaxring::cuda
