#include <cstring>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"
#include "cuda/host/gpu/cuda/virtual_memory.h"

namespace jaxring::cuda {
namespace {

class SharedMemory final : public GpuSharing {
 public:
  IpcHandle Export(const Allocation& allocation) override {
    ContextScope scope(allocation.device);
    cudaIpcMemHandle_t handle;
    JAXRING_CUDA(cudaIpcGetMemHandle(&handle, allocation.base));
    IpcHandle copy;
    static_assert(sizeof handle == sizeof copy.bytes);
    std::memcpy(copy.bytes.data(), &handle, sizeof handle);
    return copy;
  }
  char* Import(int device, const IpcHandle& handle) override {
    ContextScope scope(device);
    cudaIpcMemHandle_t copy;
    std::memcpy(&copy, handle.bytes.data(), sizeof copy);
    void* memory = nullptr;
    JAXRING_CUDA(cudaIpcOpenMemHandle(&memory, copy, cudaIpcMemLazyEnablePeerAccess));
    return static_cast<char*>(memory);
  }
  int ExportDescriptor(const Allocation& allocation) override {
    ContextScope scope(allocation.device);
    if (FindAllocation(allocation.base).id != allocation.id) throw GpuError("the memory has been freed");
    return cuda::ExportDescriptor(allocation.base);
  }
  char* ImportDescriptor(int device, int descriptor, uint64_t bytes) override {
    ContextScope scope(device);
    return cuda::ImportDescriptor(device, descriptor, bytes);
  }
};

}  // namespace

GpuSharing& CudaSharing() {
  static auto* sharing = new SharedMemory;
  return *sharing;
}

}  // namespace jaxring::cuda
