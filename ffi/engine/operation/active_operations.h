// The operations in flight, and of these the ones that workers execute, too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/operation/operation.h"
#include "network/peers/failure_log.h"

namespace jaxring {

class ActiveOperations {
 public:
  using List = std::vector<std::shared_ptr<Operation>>;

  // Counts operations that begin, on whichever thread, and that end.
  void Begin(size_t operations) { unfinished_ += static_cast<int>(operations); }
  void End() { unfinished_--; }
  int unfinished() const { return unfinished_.load(); }

  // Adds those that have not ended; one of which a failure is known fails. Returns the number of their lanes.
  [[gnu::hot]] size_t Add(std::span<std::shared_ptr<Operation>> ops, const FailureLog& known);
  void Remove(const std::shared_ptr<Operation>& op);
  // A copy, and the version of it if that is asked for.
  List Get(uint64_t* version = nullptr);
  // Changes with each Add and Remove, and at Touch.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Makes those who keep a copy get a new one.
  void Touch() { version_.fetch_add(1, std::memory_order_release); }
  int count() const { return count_.load(std::memory_order_seq_cst); }
  // Fails the operation with this key, if it is among them.
  void Fail(uint64_t key, const Status& failure);

 private:
  Mutex mutex_;  // the log's and those of operations are taken under it
  List operations_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<uint64_t> version_{0};
  std::atomic<int> count_{0}, unfinished_{0};
};

}  // namespace jaxring
