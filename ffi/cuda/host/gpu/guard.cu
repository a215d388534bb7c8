#include <cuda_runtime.h>

#include "cuda/host/gpu/guard.h"

namespace jaxring::cuda {
namespace {

__global__ void GuardKernel(const Status* status) {
  if (*reinterpret_cast<const volatile uint32_t*>(&status->fault) != 0) __trap();
}

}  // namespace

int LaunchGuard(const Status* status, void* stream) {
  void* parameters[] = {&status};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&GuardKernel), dim3(1), dim3(1), parameters, 0,
                          static_cast<cudaStream_t>(stream));
}

int LoadGuard() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&GuardKernel));
}

}  // namespace jaxring::cuda
