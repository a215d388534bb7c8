// What holds a program's first operations back: processes of whose programs one does not know yet that they are the
// same. A plan has one until all have said so; an operation that fails passes it, closed or not.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace jaxring {

class ProgramLatch {
 public:
  explicit ProgramLatch(std::set<int> missing) : missing_(std::move(missing)), open_(missing_.empty()) {}
  bool open() const { return open_.load(std::memory_order_acquire); }
  // True if that opened it.
  bool Confirm(int process) {
    std::lock_guard lock(mutex_);
    if (missing_.erase(process) == 0 || !missing_.empty()) return false;
    open_.store(true, std::memory_order_release);
    return true;
  }
  std::set<int> Missing() const {
    std::lock_guard lock(mutex_);
    return missing_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<int> missing_;
  std::atomic<bool> open_;
};

}  // namespace jaxring
