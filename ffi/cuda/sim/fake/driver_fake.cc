#include "cuda/sim/fake/driver_fake.h"

#include <atomic>
#include <cstdint>

#include "cuda/sim/fake/gpu_fake.h"

namespace jaxring::cuda::fake {
namespace {

thread_local bool this_thread_captures = false;
std::mutex driver;
std::atomic<bool> hold_allocations{false};
std::atomic<int> held_allocations{0};
std::atomic<uint32_t> prepared{0};  // a bit for each device

// Takes the driver for a moment.
void EnterDriver() { std::lock_guard lock(driver); }

}  // namespace

std::unique_lock<std::mutex> HoldDriver() { return std::unique_lock(driver); }

void SetCapturing(bool capturing) { this_thread_captures = capturing; }

void CheckNotCapturing() {
  EnterDriver();
  if (this_thread_captures) throw GpuError("operation not permitted when stream is capturing");
}

void WaitWhileAllocationsAreHeld() {
  ++held_allocations;
  hold_allocations.wait(true);
  --held_allocations;
}

void HoldAllocations(bool hold) {
  hold_allocations = hold;
  hold_allocations.notify_all();
}

int HeldAllocations() { return held_allocations; }

void MarkPrepared(int device) { prepared |= 1u << device; }

bool AnyPrepared() { return prepared != 0; }

void CheckPrepared(int device) {
  EnterDriver();
  if ((prepared >> device & 1) == 0) throw GpuError("a launch on a device whose kernels were not loaded before");
}

}  // namespace jaxring::cuda::fake
