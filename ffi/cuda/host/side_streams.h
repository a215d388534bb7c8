// Collectives that were started and are not done yet: each device of XLA's has a stream of our own beside XLA's, on
// which they run one after another.
//
// A start forks: the side stream goes on behind what XLA's has to do so far. A done joins: XLA's stream goes on behind
// the start that writes the done's operand. Both are edges between streams, no waits, so they can be captured into one
// graph. Buffers are XLA's, and the program keeps them from the start to the done.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/service.h"

namespace jaxring::cuda {

class SideStreams {
 public:
  SideStreams(Gpu& gpu, Service& service) : gpu_(gpu), service_(service) {}

  // The stream beside `stream`, behind it. `number`: the device as XLA numbers it; `device`: as the Gpu does.
  void* Fork(int number, int device, void* stream);
  // What was enqueued there since writes `result`.
  void Started(int number, const void* result);
  // Puts `stream` behind the start that writes `result`. False if there is none.
  bool Join(int number, const void* result, void* stream);

  // Starts so far, and those of them without a join, which may well have ended.
  uint64_t count() const { return count_; }
  uint64_t open();

 private:
  struct Side {
    int device = 0;
    void* stream = nullptr;
    std::map<const void*, void*> started;  // what it writes -> the event behind it
    std::vector<void*> idle;               // events
  };
  void* Event(Side& side);

  Gpu& gpu_;
  Service& service_;  // streams and events are made there, since a thread that captures may not
  std::mutex mutex_;
  std::map<int, Side> side_streams_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace jaxring::cuda
