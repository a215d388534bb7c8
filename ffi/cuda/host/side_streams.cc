#include "cuda/host/side_streams.h"

#include <utility>

namespace jaxring::cuda {

void* SideStreams::Event(Side& side) {
  if (side.idle.empty()) return service_.Do([&] { return streams_.NewEvent(side.device); });
  void* event = side.idle.back();
  side.idle.pop_back();
  return event;
}

void* SideStreams::Fork(int number, int device, void* stream) {
  MutexLock lock(mutex_);
  Side& side = side_streams_[number];
  if (side.stream == nullptr) {
    side.device = device;
    side.stream = service_.Do([&] { return streams_.NewSide(device); });
  }
  void* event = Event(side);
  streams_.Record(event, stream);
  streams_.Follow(side.stream, event);
  side.idle.push_back(event);  // can be reused: a later Record does not change what already follows it
  return side.stream;
}

void SideStreams::Started(int number, const void* result) {
  MutexLock lock(mutex_);
  Side& side = side_streams_.at(number);
  void* event = Event(side);
  streams_.Record(event, side.stream);
  ++count_;
  // A start that was never joined, because its program failed in between.
  if (void* old = std::exchange(side.started[result], event)) side.idle.push_back(old);
}

bool SideStreams::Join(int number, const void* result, void* stream) {
  MutexLock lock(mutex_);
  Side& side = side_streams_[number];
  const auto it = side.started.find(result);
  if (it == side.started.end()) return false;
  streams_.Follow(stream, it->second);
  side.idle.push_back(it->second);
  side.started.erase(it);
  return true;
}

uint64_t SideStreams::open() {
  MutexLock lock(mutex_);
  uint64_t open = 0;
  for (const auto& [number, side] : side_streams_) open += side.started.size();
  return open;
}

}  // namespace jaxring::cuda
