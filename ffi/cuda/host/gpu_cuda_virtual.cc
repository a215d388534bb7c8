#include "ffi/cuda/host/gpu_cuda_virtual.h"

#include <unistd.h>

#include "ffi/cuda/host/gpu_cuda_driver.h"

namespace jaxring::cuda {
namespace {

constexpr auto kType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Lets go of a handle at its end. Mappings keep what it stood for.
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (value != 0) TheDriver().cuMemRelease(value);
  }
  Handle(const Handle&) = delete;
  CUmemGenericAllocationHandle value = 0;
};

// An address range for kernels of those devices, given back if it does not get so far.
char* Map(const std::vector<int>& users, const Handle& handle, uint64_t bytes) {
  const Driver& driver = TheDriver();
  CUdeviceptr address = 0;
  Check(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  bool mapped = false;
  try {
    Check(driver.cuMemMap(address, bytes, 0, handle.value, 0), "cuMemMap");
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

bool Supports(int device, CUdevice_attribute attribute) {
  CUdevice handle;
  int value = 0;
  return TheDriver().cuDeviceGet(&handle, device) == CUDA_SUCCESS &&
         TheDriver().cuDeviceGetAttribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
}

}  // namespace

int ExportDescriptor(const void* base) {
  Handle handle;
  Check(TheDriver().cuMemRetainAllocationHandle(&handle.value, const_cast<void*>(base)), "cuMemRetainAllocationHandle");
  int descriptor = -1;
  Check(TheDriver().cuMemExportToShareableHandle(&descriptor, handle.value, kType, 0), "cuMemExportToShareableHandle");
  return descriptor;
}

char* ImportDescriptor(int device, int descriptor, uint64_t bytes) {
  Handle handle;
  void* given = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  Check(TheDriver().cuMemImportFromShareableHandle(&handle.value, given, kType), "cuMemImportFromShareableHandle");
  return Map({device}, handle, bytes);
}

char* AllocateVirtual(int device, const std::vector<int>& users, uint64_t bytes) {
  if (!Supports(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      !Supports(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    return nullptr;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kType;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  try {
    size_t unit = 0;
    Check(TheDriver().cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    bytes = (bytes + unit - 1) / unit * unit;
    Handle handle;
    Check(TheDriver().cuMemCreate(&handle.value, bytes, &properties, 0), "cuMemCreate");
    // Whether it can be exported shows here, not in what the driver says of itself.
    int descriptor = -1;
    Check(TheDriver().cuMemExportToShareableHandle(&descriptor, handle.value, kType, 0),
          "cuMemExportToShareableHandle");
    close(descriptor);
    return Map(users, handle, bytes);
  } catch (const GpuError&) {
    return nullptr;
  }
}

}  // namespace jaxring::cuda
