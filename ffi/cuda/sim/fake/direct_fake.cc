// Memory of the fake GPU for NICs.
#include <string>

#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/mappings.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

class Direct final : public GpuDirect {
 public:
  std::string WhyNot(int) override { return options().no_direct ? "the driver reports no GPUDirect RDMA" : ""; }
  char* Allocate(int device, uint64_t bytes) override { return FakeMemory().Allocate(device, bytes); }
  // What no NIC's driver takes for a dma-buf, so that the memory is registered by its address.
  int ExportDmaBuf(int, char* memory, uint64_t) override {
    return Mappings::Get().DuplicateDescriptor(Mappings::Get().Find(memory), "cuMemGetHandleForAddressRange");
  }
  void Flush(int) override {}
};

}  // namespace

GpuDirect& FakeDirect() {
  static auto* direct = new Direct;
  return *direct;
}

}  // namespace jaxring::cuda::fake
