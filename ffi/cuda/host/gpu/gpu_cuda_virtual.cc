#include "cuda/host/gpu/gpu_cuda_virtual.h"

#include <unistd.h>

namespace jaxring::cuda {

bool Supports(int device, CUdevice_attribute attribute) {
  CUdevice handle;
  int value = 0;
  return TheDriver().cuDeviceGet(&handle, device) == CUDA_SUCCESS &&
         TheDriver().cuDeviceGetAttribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
}

void CreateMemory(int device, uint64_t* bytes, MemoryHandle* memory) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kHandleType;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  size_t unit = 0;
  Check(TheDriver().cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  *bytes = (*bytes + unit - 1) / unit * unit;
  Check(TheDriver().cuMemCreate(&memory->value, *bytes, &properties, 0), "cuMemCreate");
}

char* MapMemory(const std::vector<int>& users, const MemoryHandle& memory, uint64_t bytes, uint64_t alignment) {
  const Driver& driver = TheDriver();
  CUdeviceptr address = 0;
  Check(driver.cuMemAddressReserve(&address, bytes, alignment, 0, 0), "cuMemAddressReserve");
  bool mapped = false;
  try {
    Check(driver.cuMemMap(address, bytes, 0, memory.value, 0), "cuMemMap");
    mapped = true;
    std::vector<CUmemAccessDesc> access(users.size());
    for (size_t i = 0; i < users.size(); ++i) {
      access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access[i].location.id = users[i];
      access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    Check(driver.cuMemSetAccess(address, bytes, access.data(), access.size()), "cuMemSetAccess");
  } catch (const GpuError&) {
    if (mapped) driver.cuMemUnmap(address, bytes);
    driver.cuMemAddressFree(address, bytes);
    throw;
  }
  return reinterpret_cast<char*>(address);
}

void UnmapMemory(char* memory, uint64_t bytes) {
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  TheDriver().cuMemUnmap(address, bytes);
  TheDriver().cuMemAddressFree(address, bytes);
}

int ExportHandle(const MemoryHandle& memory) {
  int descriptor = -1;
  Check(TheDriver().cuMemExportToShareableHandle(&descriptor, memory.value, kHandleType, 0),
        "cuMemExportToShareableHandle");
  return descriptor;
}

void ImportHandle(int descriptor, MemoryHandle* memory) {
  void* given = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  Check(TheDriver().cuMemImportFromShareableHandle(&memory->value, given, kHandleType),
        "cuMemImportFromShareableHandle");
}

int ExportDescriptor(const void* base) {
  MemoryHandle handle;
  Check(TheDriver().cuMemRetainAllocationHandle(&handle.value, const_cast<void*>(base)), "cuMemRetainAllocationHandle");
  return ExportHandle(handle);
}

char* ImportDescriptor(int device, int descriptor, uint64_t bytes) {
  MemoryHandle handle;
  ImportHandle(descriptor, &handle);
  return MapMemory({device}, handle, bytes);
}

char* AllocateVirtual(int device, const std::vector<int>& users, uint64_t bytes) {
  if (!Supports(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      !Supports(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    return nullptr;
  }
  try {
    MemoryHandle handle;
    CreateMemory(device, &bytes, &handle);
    // The device's attributes do not tell whether memory can be exported, so this tries it.
    close(ExportHandle(handle));
    return MapMemory(users, handle, bytes);
  } catch (const GpuError&) {
    return nullptr;
  }
}

}  // namespace jaxring::cuda
