#include <utility>

#include "cuda/experimental/copy_barrier.h"
#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/machine.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

// What a launch whose members address each other's buffers needs: here all devices are members'.
void CheckReached(int device, const Args& args) {
  CheckPrepared(device);
  for (int other = 0; other < options().devices && args.group.member_count != 0; ++other) {
    if (!FakeMemory().Reaches(other, args.buffers.in) || !FakeMemory().Reaches(other, args.buffers.out)) {
      throw GpuError("an illegal memory access (700)");
    }
  }
}

void Push(void* stream, Task task) { Machine::Get().Push(NumberOf(stream), std::move(task)); }

class Kernels final : public GpuKernels {
 public:
  void Launch(int device, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Push(stream, {{}, args, -1, threads});
  }
  void LaunchEpilogue(int device, const EpilogueArgs& epilogue, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Push(stream, {{}, args, -1, threads, Task::kNoBarrier, {}, {}, {}, epilogue});
  }
  void LaunchFused(int device, Fused fused, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Push(stream, {{}, args, static_cast<int>(fused), threads});
  }
  void LaunchBarrier(int device, bool open, const Args& args, void* stream) override {
    CheckPrepared(device);
    Push(stream, {{}, args, -1, kCopyBarrierThreads, open ? Task::kOpen : Task::kClose});
  }
  void LaunchMulticast(int device, const Multicast& memory, const Args& args, int threads, void* stream) override {
    CheckPrepared(device);
    Push(stream, {{}, args, -1, threads, Task::kNoBarrier, {}, {}, memory});
  }
  void LaunchPointToPoint(int device, const PointToPoint& message, const Args& args, int threads,
                          void* stream) override {
    CheckPrepared(device);
    Push(stream, {{}, args, -1, threads, Task::kNoBarrier, message});
  }
  void LaunchExtents(int device, const Ragged& ragged, const Args& args, void* stream) override {
    CheckPrepared(device);
    Push(stream, {{}, args, -1, kWarp, Task::kNoBarrier, {}, ragged});
  }
  void LaunchEmpty(int, const Args*, int, void* stream) override {
    Push(stream, {[] {}, {}});
  }
};

}  // namespace

GpuKernels& FakeKernels() {
  static auto* kernels = new Kernels;
  return *kernels;
}

}  // namespace jaxring::cuda::fake
