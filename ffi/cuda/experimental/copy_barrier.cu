#include <cuda_runtime.h>

#include "cuda/device/loading.h"
#include "cuda/experimental/copy_barrier.h"
#include "cuda/experimental/copy_barrier_launch.h"

namespace jaxring::cuda {
namespace {

__global__ void __launch_bounds__(kCopyBarrierThreads, 1)
    CopyBarrierKernel(bool open, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayCopyBarrier(open, args, shared);
}

}  // namespace

int LaunchCopyBarrier(bool open, const Args& args, void* stream) {
  void* parameters[] = {&open, const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&CopyBarrierKernel), dim3(1), dim3(kCopyBarrierThreads),
                          parameters, 0, static_cast<cudaStream_t>(stream));
}

int LoadCopyBarrier() { return Load({reinterpret_cast<const void*>(&CopyBarrierKernel)}); }

}  // namespace jaxring::cuda
