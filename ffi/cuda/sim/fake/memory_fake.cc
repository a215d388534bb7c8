#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/mappings.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

char* AllocateAs(int device, uint64_t bytes, Sharing sharing, bool own_device_only = false, char* at = nullptr) {
  CheckNotCapturing();
  WaitWhileAllocationsAreHeld();
  return Mappings::Get().Allocate(device, bytes, sharing, own_device_only, at);
}

class Memory final : public GpuMemory {
 public:
  char* Allocate(int device, uint64_t bytes) override { return AllocateAs(device, bytes, Sharing::kHandle); }
  char* AllocateShared(int device, uint64_t bytes) override {
    const bool own_device_only = options().own_device_only;
    const uint64_t part = options().mapping_bytes;
    if (part == 0) return AllocateAs(device, bytes, Sharing::kDescriptor, own_device_only);
    void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED) throw GpuError("out of memory");
    auto* memory = static_cast<char*>(range);
    for (uint64_t at = 0; at < bytes; at += part) {
      AllocateAs(device, std::min(part, bytes - at), Sharing::kDescriptor, own_device_only, memory + at);
    }
    return memory;
  }
  void Free(int, char* memory) override {
    CheckNotCapturing();
    Mappings::Get().Free(memory);
  }
  char* AllocatePinned(uint64_t bytes) override {
    if (!AnyPrepared()) throw GpuError("pinned memory before a device is prepared, for which CUDA uses device 0");
    return Allocate(-1, bytes);
  }
  void FreePinned(char* memory) override { Free(-1, memory); }

  Allocation Find(const void* pointer) override { return Mappings::Get().Find(pointer); }
  bool Reaches(int device, const void* pointer) override {
    const Allocation found = Find(pointer);
    return found.base == nullptr || found.device == device || Mappings::Get().Reaches(device, found);
  }
  void Grant(int device, const void* pointer) override {
    CheckNotCapturing();
    const Allocation found = Find(pointer);
    if (found.base == nullptr) throw GpuError("cuMemSetAccess: invalid argument (1)");
    Mappings::Get().Grant(device, found);
  }

  void Copy(int, void* to, const void* from, uint64_t bytes) override {
    CheckNotCapturing();
    if (options().lose_writes && Mappings::Get().Foreign(to)) return;
    if (bytes != sizeof(uint64_t)) {
      std::memcpy(to, from, bytes);
      return;
    }
    // A kernel may poll this word, so it is stored as a whole.
    uint64_t word;
    std::memcpy(&word, from, bytes);
    __atomic_store_n(static_cast<uint64_t*>(to), word, __ATOMIC_RELAXED);
  }
};

}  // namespace

GpuMemory& FakeMemory() {
  static auto* memory = new Memory;
  return *memory;
}

}  // namespace jaxring::cuda::fake
