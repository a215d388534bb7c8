// The kernels of the one-shot all-reduce and their launch.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/one_shot.h"

namespace jaxring::cuda {
namespace {

template <DType kType, int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1) OneShotKernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  OneShotSum<kType, kRanks>(args, shared).Play();
}

template <int kWiden>
__global__ void __launch_bounds__(ThreadsAtMost(kWiden), 1) AnyOneShotKernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayAnyOneShot<kWiden>(args, shared);
}

struct KernelOf {
  template <DType kType, int kRanks>
  const void* Sum() const {
    return reinterpret_cast<const void*>(&OneShotKernel<kType, kRanks>);
  }
  template <int kWiden>
  const void* Any() const {
    return reinterpret_cast<const void*>(&AnyOneShotKernel<kWiden>);
  }
};

}  // namespace

int LaunchOneShot(const Args& args, int threads, void* stream) {
  void* parameters[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(OneShotOf<const void*>(args, KernelOf{}), dim3(args.shape.lanes),
                          dim3(std::min(threads, ThreadsAtMost(WidthOf(args)))), parameters, 0,
                          static_cast<cudaStream_t>(stream));
}

int LoadOneShotKernels() {
  Args args{};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int ranks : {2, 4, 8}) {
        args.call.dtype = dtype;
        args.call.op = op;
        args.group.ranks = ranks;
        if (const cudaError_t error = Load({OneShotOf<const void*>(args, KernelOf{})})) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace jaxring::cuda
