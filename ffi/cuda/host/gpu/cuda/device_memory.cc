#include <cstring>
#include <vector>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"
#include "cuda/host/gpu/cuda/virtual_memory.h"

namespace jaxring::cuda {
namespace {

class Memory final : public GpuMemory {
 public:
  char* Allocate(int device, uint64_t bytes) override {
    ContextScope scope(device);
    void* memory = nullptr;
    JAXRING_CUDA(cudaMalloc(&memory, bytes));
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
    return static_cast<char*>(memory);
  }
  void Free(int device, char* memory) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaFree(memory));
  }
  // Descriptors first: they need neither a common IPC namespace nor, as legacy IPC does, whole blocks of cudaMalloc.
  char* AllocateShared(int device, uint64_t bytes) override {
    ContextScope scope(device);
    GpuDevices& devices = CudaDevices();
    std::vector<int> users;
    for (int user = 0; user < devices.Count(); ++user) {
      if (devices.CanAccess(user, device)) users.push_back(user);
    }
    char* memory = AllocateVirtual(device, users, bytes);
    // cudaMalloc cuts smaller allocations from blocks of this size, which IPC shares and maps as a whole.
    constexpr uint64_t kBlock = uint64_t{2} << 20;
    if (memory == nullptr) return Allocate(device, (bytes + kBlock - 1) / kBlock * kBlock);
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
    return memory;
  }
  char* AllocatePinned(uint64_t bytes) override {
    ContextScope scope;
    void* memory = nullptr;
    JAXRING_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(memory, 0, bytes);
    return static_cast<char*>(memory);
  }
  void FreePinned(char* memory) override {
    ContextScope scope;
    JAXRING_CUDA(cudaFreeHost(memory));
  }

  Allocation Find(const void* pointer) override {
    ContextScope scope;
    return FindAllocation(pointer);
  }
  bool Reaches(int device, const void* pointer) override {
    ContextScope scope;
    return cuda::Reaches(device, pointer);
  }
  void Grant(int device, const void* pointer) override {
    ContextScope scope(device);
    cuda::Grant(device, pointer);
  }

  void Copy(int device, void* to, const void* from, uint64_t bytes) override {
    ContextScope scope(device);
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
  }
};

}  // namespace

GpuMemory& CudaMemory() {
  static auto* memory = new Memory;
  return *memory;
}

}  // namespace jaxring::cuda
