// Side streams, on which collectives run between their start and their done. Each device has one besides XLA's stream.
// Collectives on it run one after another.
//
// A start forks: the side stream waits for the work that XLA's stream has so far. A done joins: XLA's stream waits for
// the start that writes the done's operand. Both are event dependencies between streams, so they can be captured into
// one graph. The buffers belong to XLA, and the program keeps them from the start to the done.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu/gpu_streams.h"
#include "cuda/host/memory/service.h"

namespace jaxring::cuda {

class SideStreams {
 public:
  SideStreams(GpuStreams& streams, Service& service) : streams_(streams), service_(service) {}

  // The side stream, ordered after `stream`. `number`: the device's number in XLA; `device`: its number in GpuDevices.
  void* Fork(int number, int device, void* stream);
  // The work enqueued since Fork writes `result`.
  void Started(int number, const void* result);
  // Orders `stream` after the start that writes `result`. Returns false if there is none.
  bool Join(int number, const void* result, void* stream);

  // The number of starts, and of starts that were not joined yet, whose work may have ended.
  uint64_t count() const { return count_; }
  uint64_t open();

 private:
  struct Side {
    int device = 0;
    void* stream = nullptr;
    std::map<const void*, void*> started;  // result -> the event after the work that writes it
    std::vector<void*> idle;               // events
  };
  void* Event(Side& side) JAXRING_REQUIRES(mutex_);

  GpuStreams& streams_;
  Service& service_;  // makes streams and events, since a thread that captures a graph must not
  Mutex mutex_;
  std::map<int, Side> side_streams_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<uint64_t> count_{0};
};

}  // namespace jaxring::cuda
