#include "cuda/sim/fake/gpu_fake.h"

#include <map>
#include <mutex>

#include "cuda/sim/fake/machine.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {

Options& options() {
  static Options options;
  return options;
}

int RunningKernels() { return Machine::Get().RunningKernels(); }

uint64_t Enqueued(void* stream) { return Machine::Get().Pushed(NumberOf(stream)); }

void* StreamOf(int device) {
  static std::mutex mutex;
  static auto* streams = new std::map<int, void*>;
  std::lock_guard lock(mutex);
  void*& stream = (*streams)[device];
  if (stream == nullptr) stream = FakeStreams().New(0);
  return stream;
}

}  // namespace jaxring::cuda::fake

namespace jaxring::cuda {

Gpu& ThisGpu() {
  static Gpu gpu{fake::FakeDevices(),   fake::FakeMemory(),  fake::FakeSharing(), fake::FakeDirect(),
                 fake::FakeMulticast(), fake::FakeStreams(), fake::FakeKernels()};
  return gpu;
}

}  // namespace jaxring::cuda
