// A fake GPU for tests: device memory is shared memory that other processes can map, kernels run on the SIMT shim, and
// a stream is a queue that a machine thread executes. Several processes can use it as the same GPUs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda::fake {

// Injected failures; to be set before the GPU is used, unless they say otherwise.
struct Options {
  int devices = 2;
  bool lose_writes = false;  // copies into another process's memory do not arrive
  bool no_export = false;    // memory reports that it cannot be exported
  bool no_ipc = false;       // memory of Allocate reports that it can be exported, and the export fails
  bool no_import = false;
  bool no_peer_access = false;
  bool no_multicast = false;
  bool no_bind = false;  // binding memory to a multicast object fails
  // What is mapped of one reaches no other device's memory.
  bool lose_multicast = false;
  bool no_direct = false;  // NICs do not address its memory
  // A peer's memory is mapped only while none of this process's kernels runs.
  bool map_behind_kernels = false;
  uint64_t no_import_of = 0;  // allocations of that many bytes cannot be mapped by peers; may be stored to, atomically
  // Of AllocateShared's memory from now on, which stands for XLA's then: it is for its own device and those that are
  // granted it; it is put together from mappings of that many bytes, whole pages.
  bool own_device_only = false;
  uint64_t mapping_bytes = 0;
};
Options& options();

// An event's record: whether its stream has reached it, and with which error.
struct Come {
  std::atomic<bool> yet{false};
  std::string error;
};
using Mark = std::shared_ptr<Come>;

struct Task {
  std::function<void()> work;  // or a kernel, if empty
  Args args;
  int fused = -1;
  int threads = 0;
  enum { kNoBarrier, kOpen, kClose } barrier = kNoBarrier;
  std::optional<PointToPoint> point_to_point = {};
  std::optional<Ragged> ragged = {};
  std::optional<Multicast> multicast = {};
  std::optional<EpilogueArgs> epilogue = {};
  Mark sets = {}, awaits = {};  // records an event, waits for one
};
// The tasks of captured streams, each with its stream. Since events join streams, one graph may span several.
using Graph = std::vector<std::pair<int, Task>>;

// The kernels of this process that have begun and have not ended.
int RunningKernels();

// Kernels and copies that have been put on the stream so far: each is a node where it is captured.
uint64_t Enqueued(void* stream);

// Threads that wait in ReadBehind.
int Readers();

// Has allocations wait until it is called with false, as a driver's may for a kernel's end.
void HoldAllocations(bool hold);
// Threads that wait so.
int HeldAllocations();

// The stream that stands for that device of XLA's in tests on JAX's CPU backend.
void* StreamOf(int device);

}  // namespace jaxring::cuda::fake
