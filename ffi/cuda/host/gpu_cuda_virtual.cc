#include "ffi/cuda/host/gpu_cuda_virtual.h"

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

char* Map(int device, const Handle& handle, uint64_t bytes) {
  const Driver& driver = TheDriver();
  CUdeviceptr address = 0;
  Check(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  Check(driver.cuMemMap(address, bytes, 0, handle.value, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Check(driver.cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  return reinterpret_cast<char*>(address);
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
  return Map(device, handle, bytes);
}

char* AllocateVirtual(int device, uint64_t bytes) {
  ContextScope scope(device);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kType;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  size_t unit = 0;
  Check(TheDriver().cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  bytes = (bytes + unit - 1) / unit * unit;
  Handle handle;
  Check(TheDriver().cuMemCreate(&handle.value, bytes, &properties, 0), "cuMemCreate");
  char* memory = Map(device, handle, bytes);
  JAXRING_CUDA(cudaMemset(memory, 0, bytes));
  JAXRING_CUDA(cudaDeviceSynchronize());
  return memory;
}

}  // namespace jaxring::cuda
