// GPUDirect RDMA by the driver: memory that NICs address. All functions throw GpuError.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/gpu/gpu_cuda_driver.h"

namespace jaxring::cuda {

// Allocations of this size are not suballocated by cudaMalloc. A dma-buf consists of whole pages, and a NIC that has
// registered one allocation must not reach its neighbours.
inline constexpr uint64_t kDirectUnit = uint64_t{2} << 20;

// Why NICs cannot address the device's memory, or "" if they can.
std::string WhyNotDirect(int device);
// Makes copies to the memory synchronous, so that a NIC reads their bytes once the driver reports them done.
void OrderCopies(char* memory);
// A descriptor of the memory as a dma-buf; the caller closes it.
int ExportDmaBuf(char* memory, uint64_t bytes);
// Makes NICs' writes to the device's memory visible to its kernels, on devices that do not order them by themselves.
void FlushDirect(int device);

}  // namespace jaxring::cuda
