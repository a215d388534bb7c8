// GPU memory that processes of one host share.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/host/gpu/gpu_memory.h"

namespace jaxring::cuda {

// What another process of the host needs to map an allocation.
struct IpcHandle {
  std::array<char, 64> bytes;
};

// Allocation::sharing says which of the two ways an allocation can be shared by.
class GpuSharing {
 public:
  virtual ~GpuSharing() = default;
  virtual IpcHandle Export(const Allocation& allocation) = 0;
  // Maps another process's allocation for kernels of `device`.
  virtual char* Import(int device, const IpcHandle& handle) = 0;
  // The same by a file descriptor, which the caller closes in both cases.
  virtual int ExportDescriptor(const Allocation& allocation) = 0;
  virtual char* ImportDescriptor(int device, int descriptor, uint64_t bytes) = 0;
};

}  // namespace jaxring::cuda
