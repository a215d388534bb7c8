// What the fake GPU's driver would refuse, and where it would make a caller wait.
#pragma once

#include <mutex>

namespace jaxring::cuda::fake {

// What launches, allocations and copies need for a moment, and a copy behind a stream's work to memory that is not
// pinned as long as that lasts.
[[nodiscard]] std::unique_lock<std::mutex> HoldDriver();

// Whether this thread captures: calls that CUDA may refuse there are refused.
void SetCapturing(bool capturing);
// Takes the driver for a moment, and throws GpuError in a thread that captures.
void CheckNotCapturing();

// Waits while HoldAllocations says so.
void WaitWhileAllocationsAreHeld();

void MarkPrepared(int device);
bool AnyPrepared();
// Takes the driver for a moment, and throws GpuError for a device whose kernels were not loaded.
void CheckPrepared(int device);

}  // namespace jaxring::cuda::fake
