// Streams and graphs of a test's ranks, on a real GPU or on the fake one.
#pragma once

#include <functional>
#include <map>

#include "cuda/host/gpu/gpu.h"
#include "tests/support/check.h"
#if !defined(JAXRING_REAL_GPU)
#include "cuda/sim/fake/gpu_fake.h"
#endif

namespace jaxring::test {

// Under ThreadSanitizer there are fewer rounds, since it is slow.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

#if defined(JAXRING_REAL_GPU)
inline constexpr bool kRealGpu = true;
inline constexpr int kThreads = 256;
#else
inline constexpr bool kRealGpu = false;
inline constexpr int kThreads = kSlow ? 32 : 64;
#endif

inline int DeviceOf(int rank) { return rank % cuda::ThisGpu().devices.Count(); }

inline void* StreamOf(int rank) {
  static std::map<int, void*> streams;
  void*& stream = streams[rank];
  if (stream == nullptr) stream = cuda::ThisGpu().streams.New(DeviceOf(rank));
  return stream;
}

// A graph of what `launch` enqueues on a rank's stream.
inline std::function<void()> Captured(int rank, const std::function<void()>& launch) {
  return cuda::ThisGpu().streams.Capture(DeviceOf(rank), StreamOf(rank), launch);
}

}  // namespace jaxring::test
