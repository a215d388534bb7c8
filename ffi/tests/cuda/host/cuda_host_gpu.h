// GPU operations of tests that the engine's interface lacks: streams by number, and graphs. A real GPU and the fake one
// have the same functions.
#pragma once

#include <functional>
#include <map>

#include "cuda/host/gpu/gpu.h"
#include "tests/support/check.h"
#if defined(JAXRING_REAL_GPU)
#include <cuda_runtime_api.h>
#else
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

// A graph of what `launch` enqueues on the stream.
inline std::function<void()> Captured(void* stream, const std::function<void()>& launch) {
  auto s = static_cast<cudaStream_t>(stream);
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  launch();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  return [executable, s] { CHECK(cudaGraphLaunch(executable, s) == cudaSuccess); };
}
#else
inline constexpr bool kRealGpu = false;
inline constexpr int kThreads = kSlow ? 32 : 64;

inline std::function<void()> Captured(void* stream, const std::function<void()>& launch) {
  cuda::fake::BeginCapture(stream);
  launch();
  return [graph = cuda::fake::EndCapture(stream)] { cuda::fake::Replay(graph); };
}
#endif

inline int DeviceOf(int rank) { return rank % cuda::ThisGpu().DeviceCount(); }

inline void* StreamOf(int rank) {
  static std::map<int, void*> streams;
  void*& stream = streams[rank];
  if (stream == nullptr) stream = cuda::ThisGpu().NewStream(DeviceOf(rank));
  return stream;
}

}  // namespace jaxring::test
