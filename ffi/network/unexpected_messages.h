// The unexpected-message queue: messages that arrived before their operation. Operations of one program may run in
// different orders in different processes. If a full ring holds only messages for later operations, the engine moves
// them here, so that others can pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "transport/core/links.h"
#include "transport/core/ring.h"

namespace jaxring {

class UnexpectedMessages {
 public:
  struct Entry {
    uint32_t check = 0, checksum = 0;
    std::vector<char> data;
  };
  void Put(const MessageId& id, Entry message);
  bool Take(const MessageId& id, Entry* message);
  // Takes over the messages of the rings that are full, so that others can pass. Returns how many. With `patient` see
  // RingReceiver::SpillIfFull: for a thread that does not know whether others are reading.
  uint64_t TakeOver(const Links& links, bool patient = false);
  // Drops the messages of an operation that failed, and those that arrive later.
  void Discard(uint64_t op);
  // Drops everything, including the set of failed operations.
  void Clear();
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Hash {
    size_t operator()(const MessageId& id) const {
      uint64_t h = id.op ^ (uint64_t{id.src} << 40) ^ (uint64_t{id.dst} << 20) ^ (uint64_t{id.lane} << 8) ^ id.index;
      return static_cast<size_t>(h * 0x9E3779B97F4A7C15ull);
    }
  };
  Mutex mutex_;
  std::unordered_map<MessageId, Entry, Hash> messages_ JAXRING_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> discarded_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<size_t> bytes_{0}, count_{0};
};

}  // namespace jaxring
