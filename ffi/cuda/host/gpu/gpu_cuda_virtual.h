// Device memory of the driver's virtual memory calls, shared by POSIX descriptors. The context of the device concerned
// must be current. They throw GpuError.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/host/gpu/gpu_cuda_driver.h"

namespace jaxring::cuda {

// How memory and multicast objects are shared.
inline constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Lets go of a handle at its end. Mappings keep what it stood for.
class MemoryHandle {
 public:
  MemoryHandle() = default;
  ~MemoryHandle() {
    if (value != 0) TheDriver().cuMemRelease(value);
  }
  MemoryHandle(const MemoryHandle&) = delete;
  CUmemGenericAllocationHandle value = 0;
};

// Whether the device says so of itself.
bool Supports(int device, CUdevice_attribute attribute);
// Memory of the device that descriptors can share: `bytes` rounded up, which is written there.
void CreateMemory(int device, uint64_t* bytes, MemoryHandle* memory);
// An address range for kernels of those devices.
char* MapMemory(const std::vector<int>& users, const MemoryHandle& memory, uint64_t bytes, uint64_t alignment = 0);
void UnmapMemory(char* memory, uint64_t bytes);
// A descriptor of what a handle stands for; the caller closes it.
int ExportHandle(const MemoryHandle& memory);
void ImportHandle(int descriptor, MemoryHandle* memory);

// A descriptor of the mapping that begins at `base`; the caller closes it.
int ExportDescriptor(const void* base);
// Maps what a descriptor stands for, for kernels of `device`. The descriptor stays the caller's.
char* ImportDescriptor(int device, int descriptor, uint64_t bytes);
// Memory of `device`, at least so many bytes, for kernels of `users`, that ExportDescriptor takes. It stays until the
// process ends. nullptr where there is no such memory.
char* AllocateVirtual(int device, const std::vector<int>& users, uint64_t bytes);

// Multicast objects: see Gpu.
std::unique_ptr<MulticastObject> CreateMulticast(int devices, uint64_t bytes);
std::unique_ptr<MulticastObject> OpenMulticast(int descriptor, uint64_t bytes);

}  // namespace jaxring::cuda
