// Device memory of the driver's virtual memory calls, shared by POSIX descriptors. The context of the device concerned
// must be current. All throw GpuError.
#pragma once

#include <cstdint>

namespace jaxring::cuda {

// A descriptor of the mapping that begins at `base`; the caller closes it.
int ExportDescriptor(const void* base);
// Maps what a descriptor stands for, for kernels of `device`. The descriptor stays the caller's.
char* ImportDescriptor(int device, int descriptor, uint64_t bytes);
// Zeros of at least so many bytes that ExportDescriptor takes; they stay until the process ends.
char* AllocateVirtual(int device, uint64_t bytes);

}  // namespace jaxring::cuda
