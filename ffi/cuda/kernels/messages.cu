// The kernels of send, recv and ragged_all_to_all's sizes, and their launches.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/point_to_point.h"
#include "cuda/kernels/ragged.h"

namespace jaxring::cuda {
namespace {

__global__ void __launch_bounds__(kMaxThreads, 1)
    PointToPointKernel(const __grid_constant__ PointToPoint message, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayPointToPoint(message, args, shared);
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    ExtentsKernel(const __grid_constant__ Ragged ragged, const __grid_constant__ Args args) {
  __shared__ RaggedShared shared;
  RaggedCutter(ragged, args).Cut(shared);
}

}  // namespace

int LaunchPointToPoint(const PointToPoint& message, const Args& args, int threads, void* stream) {
  void* parameters[] = {const_cast<PointToPoint*>(&message), const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&PointToPointKernel), dim3(args.shape.lanes),
                          dim3(std::min(threads, kMaxThreads)), parameters, BulkBytes(args),
                          static_cast<cudaStream_t>(stream));
}

int LaunchExtents(const Ragged& ragged, const Args& args, void* stream) {
  void* parameters[] = {const_cast<Ragged*>(&ragged), const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&ExtentsKernel), dim3(1), dim3(kMaxThreads), parameters, 0,
                          static_cast<cudaStream_t>(stream));
}

int LoadMessageKernels() {
  if (const cudaError_t error = Load({reinterpret_cast<const void*>(&PointToPointKernel)}, sizeof(BulkShared)))
    return error;
  return Load({reinterpret_cast<const void*>(&ExtentsKernel)});
}

}  // namespace jaxring::cuda
