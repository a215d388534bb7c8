#include <string>

#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

class Devices final : public GpuDevices {
 public:
  int Count() override { return options().devices; }
  DeviceInfo Info(int device) override { return {"fake", "fake-" + std::to_string(device), 9, 0, 8, ""}; }
  bool CanAccess(int device, int peer) override { return device == peer || !options().no_peer_access; }
  bool StoresWholeLines(int device, int peer) override { return CanAccess(device, peer); }
  void EnableAccess(int device, int peer) override {
    if (!CanAccess(device, peer)) throw GpuError("no peer access");
  }
  void Prepare(int device) override { MarkPrepared(device); }
};

}  // namespace

GpuDevices& FakeDevices() {
  static auto* devices = new Devices;
  return *devices;
}

}  // namespace jaxring::cuda::fake
