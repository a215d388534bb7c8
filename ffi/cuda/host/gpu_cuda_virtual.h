// Device memory of the driver's virtual memory calls, shared by POSIX descriptors. The context of the device concerned
// must be current. They throw GpuError.
#pragma once

#include <cstdint>
#include <vector>

namespace jaxring::cuda {

// A descriptor of the mapping that begins at `base`; the caller closes it.
int ExportDescriptor(const void* base);
// Maps what a descriptor stands for, for kernels of `device`. The descriptor stays the caller's.
char* ImportDescriptor(int device, int descriptor, uint64_t bytes);
// Memory of `device`, at least so many bytes, for kernels of `users`, that ExportDescriptor takes. It stays until the
// process ends. nullptr where there is no such memory.
char* AllocateVirtual(int device, const std::vector<int>& users, uint64_t bytes);

}  // namespace jaxring::cuda
