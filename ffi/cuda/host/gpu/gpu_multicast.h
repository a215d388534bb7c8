// Multicast memory, through which NVLink switches reduce and gather.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/host/gpu/gpu_error.h"

namespace jaxring::cuda {

// One process's handle of a multicast object. Several GPUs bind memory to it and get an address that stands for all of
// it. All GPUs, in all processes, must be added before any memory is bound, and all memory must be bound before it is
// accessed; otherwise the driver waits for ever. The destructor frees this process's part.
class MulticastObject {
 public:
  virtual ~MulticastObject() = default;
  virtual uint64_t bytes() const = 0;  // per GPU; at least as many as requested
  virtual int Export() = 0;            // a descriptor, which the caller closes
  virtual void Add(int device) = 0;
  // Binds memory of the device and returns its ordinary address.
  virtual char* Bind(int device) = 0;
  // The multicast address of all bound memory, for multimem instructions in kernels of `device`.
  virtual char* Map(int device) = 0;
};

class GpuMulticast {
 public:
  virtual ~GpuMulticast() = default;
  // Whether the driver reports multicast for the device, and this build has the kernel for it.
  virtual bool Supported(int device) = 0;
  // A new object for `devices` GPUs with `bytes` each.
  virtual std::unique_ptr<MulticastObject> New(int device, int devices, uint64_t bytes) = 0;
  // The object that another process exported, and its bytes(). The caller keeps the descriptor.
  virtual std::unique_ptr<MulticastObject> Import(int device, int descriptor, uint64_t bytes) = 0;
};

}  // namespace jaxring::cuda
