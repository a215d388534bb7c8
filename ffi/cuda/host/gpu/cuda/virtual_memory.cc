#include "cuda/host/gpu/cuda/virtual_memory.h"

#include <unistd.h>

namespace jaxring::cuda {

namespace {

// The plural call does not know these attributes.
bool GetAttribute(CUpointer_attribute attribute, CUdeviceptr address, void* value) {
  return TheDriver().cuPointerGetAttribute(value, attribute, address) == CUDA_SUCCESS;
}

bool FindMapping(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) {
  return (GetAttribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address, base) &&
          GetAttribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address, bytes)) ||
         TheDriver().cuMemGetAddressRange(base, bytes, address) == CUDA_SUCCESS;
}

}  // namespace

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

// XLA's allocator makes memory by cuMemCreate and maps it into address ranges that it has reserved, one or several
// mappings to a range. Such memory is exported mapping by mapping, and its identity is that of the physical memory: the
// attributes of address ranges and of buffers describe reservations. Legacy IPC exports whole allocations of cudaMalloc
// and cuMemAlloc. Memory of cudaMallocAsync's pools can be exported by neither.
Allocation FindAllocation(const void* pointer) {
  constexpr uint64_t kPhysical = uint64_t{1} << 63;  // keeps the two kinds of ids apart
  const Driver& driver = TheDriver();
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned long long id = 0;
  int device = -1;
  unsigned legacy = 0, type = 0;
  uint64_t handles = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&id, &device, &legacy, &type, &handles, &pool};
  const CUresult result = driver.cuPointerGetAttributes(6, attributes, values, address);
  if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE) return {};
  if (legacy != 0) {
    if (driver.cuMemGetAddressRange(&base, &bytes, address) != CUDA_SUCCESS || id == 0) return {};
    return {reinterpret_cast<char*>(base), bytes, id, device, Sharing::kHandle};
  }
  if ((handles & kHandleType) == 0 || pool != nullptr) return {};
  if (!FindMapping(address, &base, &bytes)) return {};
  unsigned long long physical = 0;
  if (GetAttribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address, &physical) && physical != 0)
    id = physical | kPhysical;
  if (id == 0) return {};
  return {reinterpret_cast<char*>(base), bytes, id, device, Sharing::kDescriptor};
}

bool Reaches(int device, const void* pointer) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  unsigned long long flags = 0;
  // It fails for memory that the virtual memory calls did not make.
  if (TheDriver().cuMemGetAccess(&flags, &location, reinterpret_cast<CUdeviceptr>(pointer)) != CUDA_SUCCESS)
    return true;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

void Grant(int device, const void* pointer) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (!FindMapping(reinterpret_cast<CUdeviceptr>(pointer), &base, &bytes)) throw GpuError("the memory has been freed");
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(TheDriver().cuMemSetAccess(base, bytes, &access, 1), "cuMemSetAccess");
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
