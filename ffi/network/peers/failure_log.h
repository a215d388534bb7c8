// The latest failures of operations, as other processes reported them or this one did, by the operation's key.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace jaxring {

class FailureLog {
 public:
  // False if one was recorded for this key before, which stays. Old ones make room.
  bool Record(uint64_t key, const Status& failure);
  std::optional<Status> Find(uint64_t key) const;
  // The last `count` of them, the oldest first.
  std::vector<std::pair<uint64_t, Status>> Last(size_t count) const;
  // Records that something failed in which other processes take part, also where no operation is known for it.
  void NoteTrouble() { troubled_.store(true, std::memory_order_release); }
  // Whether that, or the failure of an operation, was recorded since the last Clear.
  bool Troubled() const { return troubled_.load(std::memory_order_acquire); }
  void Clear();

 private:
  mutable Mutex mutex_;  // no other mutex is taken under it
  std::map<uint64_t, Status> failures_ JAXRING_GUARDED_BY(mutex_);
  std::deque<uint64_t> order_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<bool> troubled_{false};
};

}  // namespace jaxring
