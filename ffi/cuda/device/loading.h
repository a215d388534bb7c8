// Loads kernels ahead of their launches. For the .cu files.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>

namespace jaxring::cuda {

// Loads kernels into the current context and allows their launches that much dynamic shared memory.
inline cudaError_t Load(std::initializer_list<const void*> kernels, size_t dynamic_bytes = 0) {
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel)) return error;
    if (dynamic_bytes == 0) continue;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic_bytes));
    if (error) return error;
  }
  return cudaSuccess;
}

}  // namespace jaxring::cuda
