// GPU memory that NICs address (GPUDirect RDMA).
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/gpu/gpu_error.h"

namespace jaxring::cuda {

class GpuDirect {
 public:
  virtual ~GpuDirect() = default;
  // Why NICs cannot address the device's memory, or "" if they can.
  virtual std::string WhyNot(int device) = 0;
  // Zero-filled memory of the device that can be registered with NICs. GpuMemory::Free frees it.
  virtual char* Allocate(int device, uint64_t bytes) = 0;
  // A descriptor of Allocate's memory for a NIC's driver; the caller closes it.
  virtual int ExportDmaBuf(int device, char* memory, uint64_t bytes) = 0;
  // Makes NICs' writes to the device's memory visible to kernels that learn of them afterwards.
  virtual void Flush(int device) = 0;
};

}  // namespace jaxring::cuda
