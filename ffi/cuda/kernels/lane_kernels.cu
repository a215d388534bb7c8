// The kernels of the interpreter and their launch.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/lane_kernels.h"

namespace jaxring::cuda {
namespace {

template <class Protocol, int kWiden>
__global__ void __launch_bounds__(ThreadsAtMost(kWiden), 1) PlayKernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayLane<Protocol, kWiden>(args, shared);
}

template <class Protocol>
const void* KernelOf(uint32_t width) {
  switch (width) {
    case 0:
      return reinterpret_cast<const void*>(&PlayKernel<Protocol, 0>);
    case 1:
      return reinterpret_cast<const void*>(&PlayKernel<Protocol, 1>);
    case 2:
      return reinterpret_cast<const void*>(&PlayKernel<Protocol, 2>);
    default:
      return reinterpret_cast<const void*>(&PlayKernel<Protocol, 4>);
  }
}

}  // namespace

int Launch(const Args& args, int threads, void* stream) {
  if (args.staging.any()) return LaunchStaged(args, threads, stream);
  const uint32_t width = WidthOf(args);
  const void* kernel = args.call.protocol == Protocol::kSimple ? KernelOf<Simple>(width)
                       : args.call.protocol == Protocol::kLL   ? KernelOf<LL>(width)
                                                               : KernelOf<LL128>(width);
  void* parameters[] = {const_cast<Args*>(&args)};
  const size_t dynamic = args.call.protocol == Protocol::kSimple ? BulkBytes(args) : 0;
  return cudaLaunchKernel(kernel, dim3(args.shape.lanes), dim3(std::min(threads, ThreadsAtMost(width))), parameters,
                          dynamic, static_cast<cudaStream_t>(stream));
}

int LoadKernels() {
  for (uint32_t width : {0, 1, 2, 4}) {
    if (const cudaError_t error = Load({KernelOf<Simple>(width)}, sizeof(BulkShared))) return error;
    if (const cudaError_t error = Load({KernelOf<LL>(width), KernelOf<LL128>(width)})) return error;
  }
  return cudaSuccess;
}

const char* Architectures() { return JAXRING_CUDA_TARGETS; }

}  // namespace jaxring::cuda
