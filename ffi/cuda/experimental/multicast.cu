// The kernel of collectives through multicast memory, and its launch.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda/device/loading.h"
#include "cuda/experimental/multicast.h"

namespace jaxring::cuda {
namespace {

// Earlier architectures have no multimem instructions; see MulticastCompiled.
__global__ void __launch_bounds__(kMaxThreads, 1)
    MulticastKernel(const __grid_constant__ Multicast memory, const __grid_constant__ Args args) {
#if __CUDA_ARCH__ >= 900
  __shared__ Shared shared;
  PlayMulticast(memory, args, shared);
#else
  __trap();
#endif
}

}  // namespace

int LaunchMulticast(const Multicast& memory, const Args& args, int threads, void* stream) {
  void* parameters[] = {const_cast<Multicast*>(&memory), const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&MulticastKernel), dim3(args.shape.lanes),
                          dim3(std::min(threads, kMaxThreads)), parameters, 0, static_cast<cudaStream_t>(stream));
}

bool MulticastCompiled() {
  static_assert(sizeof JAXRING_CUDA_TARGETS > sizeof "compute_");  // ends with what PTX there is
  return std::atoi(std::strrchr(JAXRING_CUDA_TARGETS, '_') + 1) >= 90;
}

int LoadMulticastKernel() { return Load({reinterpret_cast<const void*>(&MulticastKernel)}); }

}  // namespace jaxring::cuda
