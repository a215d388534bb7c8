// Memory of the GPUs, and of the host where GPUs address it, in this process.
#pragma once

#include <cstdint>

#include "cuda/host/gpu/gpu_error.h"

namespace jaxring::cuda {

// How another process of the host can map an allocation: see GpuSharing.
enum class Sharing : uint32_t {
  kNone = 0,
  kHandle,      // legacy IPC: Export and Import
  kDescriptor,  // memory of the driver's virtual memory calls: ExportDescriptor and ImportDescriptor
};

// The allocation of a pointer, or the mapping if the memory was made by the virtual memory calls. `id` is never reused
// in this process, even after a free.
struct Allocation {
  char* base = nullptr;
  uint64_t bytes = 0;
  uint64_t id = 0;
  int device = 0;
  Sharing sharing = Sharing::kNone;
};

class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  // Memory filled with zeros. Pinned memory has the same address on the host and on all devices.
  virtual char* Allocate(int device, uint64_t bytes) = 0;
  virtual void Free(int device, char* memory) = 0;
  // Zero-filled memory that other processes can map, by whichever way the device has. It lives until the process ends.
  virtual char* AllocateShared(int device, uint64_t bytes) = 0;
  virtual char* AllocatePinned(uint64_t bytes) = 0;
  virtual void FreePinned(char* memory) = 0;

  virtual Allocation Find(const void* pointer) = 0;
  // Whether kernels of `device` can address the memory, which is of another device of this process. Memory of the
  // virtual memory calls is only for devices that are named for it; for all other memory GpuDevices::EnableAccess is
  // enough.
  virtual bool Reaches(int device, const void* pointer) = 0;
  // Names the device for the mapping of that pointer. It may wait for kernels that run, so no launch calls it.
  virtual void Grant(int device, const void* pointer) = 0;

  // Returns after the copy is complete. Not ordered with any stream's work.
  virtual void Copy(int device, void* to, const void* from, uint64_t bytes) = 0;
};

}  // namespace jaxring::cuda
