// The kernels of the interpreter that apply an epilogue, and their launch.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/epilogue_slices.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/lane_kernels.h"

namespace jaxring::cuda {
namespace {

// All widths are in one kernel.
constexpr int kThreads = ThreadsAtMost(4);

template <class Protocol>
__global__ void __launch_bounds__(kThreads, 1)
    EpilogueKernel(const __grid_constant__ EpilogueArgs epilogue, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayEpilogueLane<Protocol>(epilogue, args, shared);
}

template <class Protocol>
const void* Kernel() {
  return reinterpret_cast<const void*>(&EpilogueKernel<Protocol>);
}

}  // namespace

int LaunchEpilogue(const EpilogueArgs& epilogue, const Args& args, int threads, void* stream) {
  if (!HasFurtherKernels(args.call.protocol)) return cudaErrorInvalidValue;
  if (args.staging.any()) return LaunchStagedEpilogue(epilogue, args, threads, stream);
  const bool lines = args.call.protocol == Protocol::kLL;
  threads = std::min(threads, kThreads);
  const uint64_t bytes = lines ? EpilogueShared<LL>::BytesFor(threads) : EpilogueShared<Slots>::BytesFor(threads);
  void* parameters[] = {const_cast<EpilogueArgs*>(&epilogue), const_cast<Args*>(&args)};
  return cudaLaunchKernel(lines ? Kernel<LL>() : Kernel<Slots>(), dim3(args.shape.lanes), dim3(threads), parameters,
                          bytes, static_cast<cudaStream_t>(stream));
}

int LoadEpilogueKernels() {
  if (const cudaError_t error = Load({Kernel<Slots>()}, EpilogueShared<Slots>::BytesFor(kThreads))) return error;
  return Load({Kernel<LL>()}, EpilogueShared<LL>::BytesFor(kThreads));
}

}  // namespace jaxring::cuda
