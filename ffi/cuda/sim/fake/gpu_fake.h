// A GPU for tests: device memory is shared memory that other processes can map, kernels run on the SIMT shim, and a
// stream is a queue that one machine thread works off. Several processes may take it for the same GPUs.
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

// What goes wrong; to be set before it is used.
struct Options {
  int devices = 2;
  bool lose_writes = false;  // what is copied into another process's memory does not arrive
  bool no_export = false;    // memory that says that it cannot be exported
  bool no_ipc = false;       // memory of Allocate that says that it can, and cannot
  bool no_import = false;
  bool no_peer_access = false;
  bool no_multicast = false;
  bool no_bind = false;  // memory to a multicast object
  // What is mapped of one reaches no other device's memory.
  bool lose_multicast = false;
  bool no_direct = false;  // NICs do not address its memory
};
Options& options();

// An event's record: whether its stream has come to it, and in what state.
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
  std::optional<Mail> mail = {};
  std::optional<Ragged> ragged = {};
  std::optional<Multicast> multicast = {};
  Mark sets = {}, awaits = {};  // a record of an event, a wait for one
};
// What captured streams would have done: (which stream, what). As events join streams, one graph may span several.
using Graph = std::vector<std::pair<int, Task>>;

void BeginCapture(void* stream);
// Throws GpuError where another stream was taken in and has not come back.
Graph EndCapture(void* stream);
void Replay(const Graph& graph);

// The stream that stands for that device of XLA's in tests on JAX's CPU backend.
void* StreamOf(int device);

}  // namespace jaxring::cuda::fake
