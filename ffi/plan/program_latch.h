// The latch that holds a program's first operations back until the other processes have confirmed that they run the
// same program. A plan has one until then. An operation that fails does not wait for it.
#pragma once

#include <atomic>
#include <set>
#include <utility>

#include "base/mutex.h"

namespace jaxring {

class ProgramLatch {
 public:
  explicit ProgramLatch(std::set<int> missing) : missing_(std::move(missing)), open_(missing_.empty()) {}
  bool open() const { return open_.load(std::memory_order_acquire); }
  // Returns whether this opened the latch.
  bool Confirm(int process) {
    MutexLock lock(mutex_);
    if (missing_.erase(process) == 0 || !missing_.empty()) return false;
    open_.store(true, std::memory_order_release);
    return true;
  }
  std::set<int> Missing() const {
    MutexLock lock(mutex_);
    return missing_;
  }

 private:
  mutable Mutex mutex_;
  std::set<int> missing_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<bool> open_;
};

}  // namespace jaxring
