// Device memory made by the driver's virtual memory calls and shared by POSIX descriptors. The device's context must be
// current. All functions throw GpuError.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/gpu_memory.h"

namespace jaxring::cuda {

// How memory and multicast objects are shared.
inline constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Releases a handle in its destructor. Mappings keep the memory.
class MemoryHandle {
 public:
  MemoryHandle() = default;
  ~MemoryHandle() {
    if (value != 0) TheDriver().cuMemRelease(value);
  }
  MemoryHandle(const MemoryHandle&) = delete;
  CUmemGenericAllocationHandle value = 0;
};

// Whether the device has the attribute.
bool Supports(int device, CUdevice_attribute attribute);
// Makes memory of the device that descriptors can share. Rounds `*bytes` up to its size.
void CreateMemory(int device, uint64_t* bytes, MemoryHandle* memory);
// An address range for kernels of those devices.
char* MapMemory(const std::vector<int>& users, const MemoryHandle& memory, uint64_t bytes, uint64_t alignment = 0);
void UnmapMemory(char* memory, uint64_t bytes);
// A descriptor of the handle's memory or object; the caller closes it.
int ExportHandle(const MemoryHandle& memory);
void ImportHandle(int descriptor, MemoryHandle* memory);

// The allocation of a pointer: see GpuMemory::Find. Some context must be current.
Allocation FindAllocation(const void* pointer);
// See GpuMemory.
bool Reaches(int device, const void* pointer);
void Grant(int device, const void* pointer);
// A descriptor of the mapping that begins at `base`; the caller closes it.
int ExportDescriptor(const void* base);
// Maps a descriptor's memory for kernels of `device`. The caller keeps the descriptor.
char* ImportDescriptor(int device, int descriptor, uint64_t bytes);
// At least `bytes` of memory of `device` for kernels of `users`, which ExportDescriptor can export. It lives until the
// process ends. Returns nullptr if the device has no such memory.
char* AllocateVirtual(int device, const std::vector<int>& users, uint64_t bytes);

}  // namespace jaxring::cuda
