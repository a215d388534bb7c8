#include <cuda_runtime.h>

#include "cuda/device/loading.h"
#include "cuda/experimental/copy_gates.h"
#include "cuda/experimental/copy_gates_launch.h"

namespace jaxring::cuda {
namespace {

__global__ void __launch_bounds__(kCopyGateThreads, 1) CopyGateKernel(bool open, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayCopyGate(open, args, shared);
}

}  // namespace

int LaunchCopyGate(bool open, const Args& args, void* stream) {
  void* parameters[] = {&open, const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&CopyGateKernel), dim3(1), dim3(kCopyGateThreads), parameters,
                          0, static_cast<cudaStream_t>(stream));
}

int LoadCopyGate() { return Load({reinterpret_cast<const void*>(&CopyGateKernel)}); }

}  // namespace jaxring::cuda
