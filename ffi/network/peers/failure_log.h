// The latest failures of operations, as other processes reported them or this one did, by the operation's key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace jaxring {

class FailureLog {
 public:
  // False if one was recorded for this key before, which stays. Old ones make room.
  bool Record(uint64_t key, const Status& failure);
  std::optional<Status> Find(uint64_t key) const;
  // The last `count` of them, the oldest first.
  std::vector<std::pair<uint64_t, Status>> Last(size_t count) const;
  void Clear();

 private:
  mutable std::mutex mutex_;  // no other mutex is taken under it
  std::map<uint64_t, Status> failures_;
  std::deque<uint64_t> order_;
};

}  // namespace jaxring
