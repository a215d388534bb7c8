// GPUDirect RDMA by the driver: memory that NICs address. They throw GpuError.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/gpu/gpu_cuda_driver.h"

namespace jaxring::cuda {

// So that an allocation is none of those that cudaMalloc cuts from one block: a dma-buf is of whole pages, and a NIC
// that is told of one allocation should not reach its neighbours.
inline constexpr uint64_t kDirectUnit = uint64_t{2} << 20;

// Why NICs cannot address the device's memory, "" where they can.
std::string WhyNotDirect(int device);
// Has the driver finish copies to the memory before it calls them done, which a NIC that reads it relies on.
void OrderCopies(char* memory);
// A descriptor of the memory as a dma-buf; the caller closes it.
int ExportDmaBuf(char* memory, uint64_t bytes);
// Waits until what NICs wrote to the device's memory is there for its kernels, where these do not see it in order by
// themselves.
void FlushDirect(int device);

}  // namespace jaxring::cuda
