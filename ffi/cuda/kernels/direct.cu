// The kernels of fused collectives and their launch.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/direct.h"
#include "cuda/kernels/lane_kernels.h"

namespace jaxring::cuda {
namespace {

template <int kWiden>
__global__ void __launch_bounds__(ThreadsAtMost(kWiden), 1)
    FusedKernel(Fused fused, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayFused<kWiden>(fused, args, shared);
}

const void* KernelOf(uint32_t width) {
  switch (width) {
    case 0:
      return reinterpret_cast<const void*>(&FusedKernel<0>);
    case 1:
      return reinterpret_cast<const void*>(&FusedKernel<1>);
    case 2:
      return reinterpret_cast<const void*>(&FusedKernel<2>);
    default:
      return reinterpret_cast<const void*>(&FusedKernel<4>);
  }
}

}  // namespace

int LaunchFused(Fused fused, const Args& args, int threads, void* stream) {
  if (fused == Fused::kAllReduceOneShot) return LaunchOneShot(args, threads, stream);
  if (args.staging.any()) return LaunchStagedFused(fused, args, threads, stream);
  const uint32_t width = WidthOf(args);
  void* parameters[] = {&fused, const_cast<Args*>(&args)};
  return cudaLaunchKernel(KernelOf(width), dim3(args.shape.lanes), dim3(std::min(threads, ThreadsAtMost(width))),
                          parameters, width == 0 ? BulkBytes(args) : 0, static_cast<cudaStream_t>(stream));
}

int LoadFusedKernels() {
  if (const cudaError_t error = Load({KernelOf(0)}, sizeof(BulkShared))) return error;
  return Load({KernelOf(1), KernelOf(2), KernelOf(4)});
}

}  // namespace jaxring::cuda
