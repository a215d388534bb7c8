#include <cuda_runtime.h>

#include "ffi/cuda/host/guard.h"

namespace jaxring::cuda {
namespace {

__global__ void GuardKernel(const Status* status) {
  if (*reinterpret_cast<const volatile uint32_t*>(&status->fault) != 0) __trap();
}

}  // namespace

int LaunchGuard(const Status* status, void* stream) {
  GuardKernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(status);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace jaxring::cuda
